"""A block as files: the canonical graph and its fast paths, verified, described in their own metadata, written at once.

``<repository>/<name>/<version>/model.onnx`` takes every option and answers every output. ``plain.onnx`` is the same
function for a request without options: no mask is built, so a small request costs half the nodes. The others are for
large requests that do not ask for weights (``export.fast_path``).
"""

import json
import math
import shutil
import tempfile
from collections.abc import Iterable
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import onnx
from torch import nn

from export.fast_path import fast_paths
from export.graph import OPSET, export_graph
from export.verification import CANONICAL, Check, checks, is_large
from models.block import Block, Input
from models.catalogue import find
from models.examples import documented
from models.learned import SEED


class ExportError(Exception):
    """ONNX Runtime does not agree with the reference; nothing was written."""


def export_block(
    block: Block,
    repository: Path,
    version: int = 1,
    beside: Iterable[Path] = (),
) -> Path:
    """Export, verify and write ``block``, with files ``beside`` it (a tokenizer); answers the folder written.

    Raises:
        ExportError: the graphs are not right within their budgets. What stood in the repository still stands.
    """
    module = block.build()
    graphs: dict[str, onnx.ModelProto] = {}
    for name, (inputs, outputs) in _graphs(block, is_large(module)).items():
        graphs[name] = export_graph(block, module, inputs, outputs, fast_paths(block).get(name))
    results = verify(block, module, graphs)
    matrices = [matrix for name, matrix in module.named_parameters() if matrix.ndim > 1 and "embedding" not in name]
    learned = sum(matrix.numel() for matrix in matrices)  # multiply-adds for each row, about
    for name, graph in graphs.items():
        onnx.helper.set_model_props(
            graph, {"heed": json.dumps(_card(block, name, version, learned, results), indent=1)}
        )
    return _write(graphs, beside, repository / block.name / str(version))


def export_builtin(name: str, repository: Path, version: int = 1) -> Path:
    """``export_block`` of a built-in block, by its name: what a process of its own can be told to do."""
    return export_block(find(name), repository, version)


def verify(block: Block, module: nn.Module, graphs: dict[str, onnx.ModelProto]) -> list[Check]:
    """Every check of every graph.

    Raises:
        ExportError: one failed.
    """
    files = {name: graph.SerializeToString() for name, graph in graphs.items()}
    results = list(checks(block, module, files, {name: path.fixes for name, path in fast_paths(block).items()}))
    failed = [check for check in results if not check.ok]
    if failed:
        worst = sorted(failed, key=lambda check: check.error / (check.budget or math.ulp(0)), reverse=True)[:5]
        listed = "".join(f"\n  {check}" for check in worst)
        some = f"{len(failed)} of {len(results)}"
        raise ExportError(f"{block.name}: {some} checks against the float64 reference failed{listed}")
    return results


def _graphs(block: Block, large: bool) -> dict[str, tuple[list[str], list[str]]]:
    """File name -> the inputs it takes and the outputs it answers. Large weights are not written once for each path."""
    graphs = {CANONICAL: (list(block.inputs), list(block.outputs))}
    if large:
        return graphs
    graphs["plain"] = ([name for name, of in block.inputs.items() if of.required], ["output", "weights"])
    if block.linear:
        graphs["output"] = (list(block.inputs), ["output"])
    return graphs | {name: path.graph(block) for name, path in fast_paths(block).items()}


def _card(block: Block, graph: str, version: int, learned: int, results: list[Check]) -> dict[str, Any]:
    """What the artifact says of itself; names, shapes and types are the graph's own and are not repeated here."""
    if graph != CANONICAL:
        path = fast_paths(block).get(graph)
        said = path.card() if path else {"rows": 0} if graph == "output" else {}
        return {"block": block.name, "fast_path": graph, **said}
    return {
        "block": block.name,
        "version": version,
        "title": block.title,
        "description": block.description,
        "formula": block.formula,
        "source": block.source,
        "config": dict(block.config),
        "weights": block.weights or (f"seed {SEED}" if learned else "none"),
        "inputs": {name: _describe(of) for name, of in block.inputs.items()},
        "outputs": {name: {"description": of.description} for name, of in block.outputs.items()},
        "multiples": dict(block.multiples),
        "limits": dict(block.limits),
        "left_out": dict(block.left_out),
        "depth": block.depth,
        "learned": learned,
        "example": documented(block),
        "tolerance": {name: max(check.budget for check in results if check.output == name) for name in block.outputs},
        "opset": OPSET,
        "exporter": f"torch {installed('torch')}",
    }


def _describe(of: Input) -> dict[str, Any]:
    default = None if isinstance(of.default, float) and math.isnan(of.default) else of.default
    said = {
        "description": of.description,
        "default": default if of.shape == () else None,
        "minimum": of.minimum,
        "maximum": of.maximum,
        "needs": list(of.needs),
        "excludes": list(of.excludes),
        "mask": of.mask or None,
    }
    return {key: value for key, value in said.items() if value is not None and value != []}


def _write(graphs: dict[str, onnx.ModelProto], beside: Iterable[Path], folder: Path) -> Path:
    """All files or none: they are written beside ``folder``, which is then replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as scratch:
        fresh = Path(scratch) / "fresh"
        fresh.mkdir()
        for name, graph in graphs.items():
            (fresh / f"{name}.onnx").write_bytes(graph.SerializeToString(deterministic=True))
        for file in beside:
            shutil.copy(file, fresh)
        if folder.exists():
            shutil.move(folder, Path(scratch) / "old")
        fresh.rename(folder)
    return folder
