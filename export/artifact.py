"""A block as files: the canonical graph and its fast paths, verified, described in their own metadata, written at once.

``<repository>/<name>/<version>/model.onnx`` takes every option and answers every output. ``plain.onnx`` is the same
function for a request without options: no mask is built, so a small request costs half the nodes. The others are for
large requests that do not ask for weights (``export.fast_path``).
"""

import json
import math
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import onnx
from torch import nn

from export.fast_path import fast_paths
from export.graph import OPSET, export_graph
from export.verification import Check, checks
from models.block import Block, Input
from models.examples import documented

CANONICAL = "model"


class ExportError(Exception):
    """ONNX Runtime does not agree with the reference; nothing was written."""

    def __init__(self, block: str, failed: list[Check], of: int) -> None:
        worst = sorted(failed, key=lambda check: check.error / (check.budget or math.ulp(0)), reverse=True)[:5]
        listed = "".join(f"\n  {check}" for check in worst)
        super().__init__(f"{block}: {len(failed)} of {of} checks against the float64 reference failed{listed}")


def export_block(block: Block, repository: Path, version: int = 1, on_step: Callable[[str], object] = str) -> Path:
    """Export, verify and write ``block``; answers the folder written. ``on_step`` hears what is being done.

    Raises:
        ExportError: the graphs are not right within their budgets. What stood in the repository still stands.
    """
    module = block.build()
    graphs: dict[str, onnx.ModelProto] = {}
    for name, (inputs, outputs) in _graphs(block).items():
        on_step(f"export {name}.onnx")
        graphs[name] = export_graph(block, module, inputs, outputs, fast_paths(block).get(name))
    on_step("verify")
    results = verify(block, module, graphs)
    for name, graph in graphs.items():
        onnx.helper.set_model_props(graph, {"heed": json.dumps(_card(block, name, version, results), indent=1)})
    on_step("write")
    return _write(graphs, repository / block.name / str(version))


def verify(block: Block, module: nn.Module, graphs: dict[str, onnx.ModelProto]) -> list[Check]:
    """Every check of every graph.

    Raises:
        ExportError: one failed.
    """
    files = {name: graph.SerializeToString() for name, graph in graphs.items()}
    results = list(checks(block, module, files, {name: path.fixes for name, path in fast_paths(block).items()}))
    failed = [check for check in results if not check.ok]
    if failed:
        raise ExportError(block.name, failed, len(results))
    return results


def _graphs(block: Block) -> dict[str, tuple[list[str], list[str]]]:
    """File name -> the inputs it takes and the outputs it answers."""
    required = [name for name, of in block.inputs.items() if of.required]
    return {
        CANONICAL: (list(block.inputs), list(block.outputs)),
        "plain": (required, ["output", "weights"]),
        **{name: path.graph(block) for name, path in fast_paths(block).items()},
    }


def _card(block: Block, graph: str, version: int, results: list[Check]) -> dict[str, Any]:
    """What the artifact says of itself; names, shapes and types are the graph's own and are not repeated here."""
    if graph != CANONICAL:
        path = fast_paths(block).get(graph)
        return {"block": block.name, "fast_path": graph, **(path.card() if path else {})}
    return {
        "block": block.name,
        "version": version,
        "title": block.title,
        "description": block.description,
        "formula": block.formula,
        "source": block.source,
        "config": dict(block.config),
        "inputs": {name: _describe(of) for name, of in block.inputs.items()},
        "outputs": {name: {"description": of.description} for name, of in block.outputs.items()},
        "multiples": dict(block.multiples),
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


def _write(graphs: dict[str, onnx.ModelProto], folder: Path) -> Path:
    """All files or none: they are written beside ``folder``, which is then replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as scratch:
        fresh = Path(scratch) / "fresh"
        fresh.mkdir()
        for name, graph in graphs.items():
            (fresh / f"{name}.onnx").write_bytes(graph.SerializeToString(deterministic=True))
        if folder.exists():
            shutil.move(folder, Path(scratch) / "old")
        fresh.rename(folder)
    return folder
