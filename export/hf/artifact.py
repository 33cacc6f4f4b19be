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
from torch import nn

from export.artifact import LARGE, ExportError, card, free_version, refuse_failed, written_whole
from export.graph import export_graph
from export.hf.description import block_of, learned_numbers, rows_of
from export.hf.examples import documented
from export.hf.float64 import Original
from export.hf.fused import TransformersPath, fast_paths
from export.hf.pretrained import ModelRefused, Pretrained
from export.hf.verification import checks, sizes_of
from export.hf.wrapper import Wrapper
from export.shared_weights import SharedWeights
from export.verification import CANONICAL, Check, session
from models.block import Block, Sizes

TRACED: Sizes = {"batch": 2, "n": 7, "m": 5}
REFERENCE = "transformers in float64"
Report = Callable[[str], None]


def export_model(
    pretrained: Pretrained, name: str, repository: Path, version: int | None, force: bool, report: Report
) -> Path:
    """Export, verify and write a model as ``name``; return the folder written.

    ``report`` is called with each step. Without ``version``, the version is the newest in the repository plus 1; with
    ``force``, it replaces ``version``, or the newest.

    Raises:
        ModelRefused: what it takes or answers cannot be described, or torch cannot export it.
        ExportError: a graph is not equal to the model, or the version exists. The repository is unchanged.
    """
    version = version or free_version(repository / name, force)
    target = repository / name / str(version)
    if target.exists() and not force:
        raise ExportError(f"{target} exists; --force replaces it, and without --version a new version is written")
    report(f"describing {pretrained.kind}")
    block, original = block_of(pretrained, name)
    learned = learned_numbers(pretrained.model)
    with written_whole(target, force) as folder:
        weights = SharedWeights(folder) if sum(x.numel() for x in pretrained.model.parameters()) > LARGE else None

        def trace(name: str, module: nn.Module, outputs: list[str], path: TransformersPath | None) -> onnx.ModelProto:
            report(f"tracing {name}.onnx")
            inputs = [input for input in block.inputs if path is None or input in path.takes]
            return _graph(block, module, inputs, outputs, path, weights)

        graphs = {CANONICAL: trace(CANONICAL, block.build(), list(block.outputs), None)}
        ways = fast_paths(pretrained.model, list(block.inputs), learned if weights else 0)
        alone = Wrapper(pretrained.model, with_weights=False).eval()
        while True:
            for name in [name for name in ways if name not in graphs]:
                while ways[name] and name not in graphs:
                    with suppress(ModelRefused):  # then the next way
                        graphs[name] = trace(name, alone, ["output"], ways[name][0])
                        break
                    del ways[name][0]
            results = _checked(block, original, graphs, folder, learned, report)
            refuse_failed(block.name, [result for result in results if result.graph == CANONICAL], REFERENCE)
            failed = {result.graph.split()[0] for result in results if not result.ok}
            if not failed:
                break
            for name in failed:  # a kernel leaves out what the model does, such as sinks
                del graphs[name], ways[name][0]
        paths = {name: ways[name][0] for name in graphs if name != CANONICAL}
        report("writing")
        cards = {name: {"block": block.name, "fast_path": name} | path.card() for name, path in paths.items()}
        cards[CANONICAL] = card(block, version, learned, results, documented(block.inputs))
        cards[CANONICAL] |= _own_entries(block, learned)
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


def _graph(
    block: Block,
    module: nn.Module,
    inputs: list[str],
    outputs: list[str],
    path: TransformersPath | None,
    weights: SharedWeights | None,
) -> onnx.ModelProto:
    try:
        return export_graph(block, module, inputs, outputs, path, TRACED, weights)
    except ModelRefused:
        raise
    except Exception as error:  # torch's exporter raises errors of many types
        raise ModelRefused(f"torch cannot export it: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """The first line of the error that caused torch's, which itself only lists advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _checked(
    block: Block, original: Original, graphs: dict[str, onnx.ModelProto], folder: Path, learned: int, report: Report
) -> list[Check]:
    results = []
    sessions = {name: session(graph.SerializeToString(), folder) for name, graph in graphs.items()}
    for check in checks(block, original, sessions, sizes_of(block, learned), learned):
        results.append(check)
        report(f"verifying {check.example}")
    return results
