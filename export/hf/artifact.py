"""Write a model of transformers as ONNX files, verified: all of them or none.

``model.onnx`` has every output; ``output.onnx`` has no weights, and computes attention without them.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers

from export.artifact import LARGE, ExportError, card, free_version, refuse_failed, written_whole
from export.fast_path import FastPath
from export.graph import export_graph
from export.hf.description import learned_numbers, rows_of
from export.hf.examples import documented
from export.hf.fused import fused
from export.hf.pretrained import ModelRefused, Pretrained
from export.hf.verification import checks, sizes_of
from export.hf.wrapper import Wrapper
from export.shared_weights import SharedWeights
from export.verification import CANONICAL, Check, session
from models.block import Block, Sizes

TRACED: Sizes = {"batch": 2, "n": 7, "m": 5}
OUTPUT = "output"
Report = Callable[[str], None]


def export_model(
    pretrained: Pretrained, block: Block, repository: Path, version: int | None, force: bool, report: Report
) -> Path:
    """Export, verify and write the model that ``block`` describes; return the folder written.

    ``report`` is called with each step. Without ``version``, the version is the newest in the repository plus 1; with
    ``force``, it replaces ``version``, or the newest.

    Raises:
        ModelRefused: torch cannot export it.
        ExportError: a graph is not equal to the model, or the version exists. The repository is unchanged.
    """
    version = version or free_version(repository / block.name, force)
    target = repository / block.name / str(version)
    if target.exists() and not force:
        raise ExportError(f"{target} exists; --force replaces it, and without --version a new version is written")
    learned = learned_numbers(pretrained.model)
    with written_whole(target, force) as folder:
        weights = SharedWeights(folder) if sum(x.numel() for x in pretrained.model.parameters()) > LARGE else None
        report(f"tracing {CANONICAL}.onnx")
        graphs = {CANONICAL: _graph(block, block.build(), list(block.outputs), weights)}
        for with_kernel in (True, False):  # the formula where a kernel leaves out what the model does (sinks)
            report(f"tracing {OUTPUT}.onnx")
            graphs[OUTPUT] = _without_weights(block, pretrained, weights, with_kernel)
            results = _checked(block, graphs, folder, learned, report)
            if all(check.ok for check in results if check.graph != CANONICAL):
                break
        refuse_failed(block.name, results, "transformers in float64")
        report("writing")
        path = FastPath(None, 0, takes=tuple(block.inputs), rows=None, provider=None)
        cards: dict[str, dict[str, Any]] = {
            CANONICAL: card(block, version, learned, results, documented(block.inputs)) | _own_entries(block, learned),
            OUTPUT: {"block": block.name, "fast_path": OUTPUT} | path.card(),
        }
        for name, graph in graphs.items():
            onnx.helper.set_model_props(graph, {"heed": json.dumps(cards[name], indent=1)})
            (folder / f"{name}.onnx").write_bytes(graph.SerializeToString(deterministic=True))
        for file in pretrained.companions:
            shutil.copy(file, folder)
    return target


def _own_entries(block: Block, learned: int) -> dict[str, Any]:
    """The entries of the metadata that differ from those of other blocks."""
    longest = {
        symbol: max(
            min(sizes[symbol], block.limits.get(symbol, sizes[symbol])) for sizes in sizes_of(block, learned).values()
        )
        for symbol in ("n", "m")
        if any(symbol in dim.split("|") for spec in block.inputs.values() for dim in map(str, spec.shape))
    }
    lengths = ", ".join(f"{symbol} up to {length}" for symbol, length in longest.items())
    return {
        "rows": rows_of(block),
        "exporter": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "verified": f"on the CPU, against transformers {transformers.__version__} with eager attention in float64"
        + (f", {lengths}" if lengths else ""),
    }


def _graph(block: Block, module: torch.nn.Module, outputs: list[str], weights: SharedWeights | None) -> onnx.ModelProto:
    try:
        return export_graph(block, module, list(block.inputs), outputs, sizes=TRACED, weights=weights)
    except ModelRefused:
        raise
    except Exception as error:  # torch's exporter raises errors of many types
        raise ModelRefused(f"torch cannot export it: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """The first line of the error that caused torch's, which itself only lists advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _without_weights(
    block: Block, pretrained: Pretrained, weights: SharedWeights | None, with_kernel: bool
) -> onnx.ModelProto:
    """The graph of the answer alone; by the formula if the model has no other attention that torch can export."""
    wrapper = Wrapper(pretrained.model, with_weights=False).eval()
    if with_kernel:
        with fused(pretrained.model) as is_fused, suppress(ModelRefused):
            if is_fused:
                return _graph(block, wrapper, [OUTPUT], weights)
    return _graph(block, wrapper, [OUTPUT], weights)


def _checked(
    block: Block, graphs: dict[str, onnx.ModelProto], folder: Path, learned: int, report: Report
) -> list[Check]:
    results = []
    sessions = {name: session(graph.SerializeToString(), folder) for name, graph in graphs.items()}
    for check in checks(block, sessions, sizes_of(block, learned), learned):
        results.append(check)
        report(f"verifying {check.example}")
    return results
