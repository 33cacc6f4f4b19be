"""A block as files: the canonical graph and its fast paths, verified, described in their own metadata, written at once.

``<repository>/<name>/<version>/model.onnx`` takes every option and answers every output. ``plain.onnx`` is the same
function for a request without options: no mask is built, so a small request costs half the nodes. The others are for
requests that do not ask for weights (``export.fast_path``).

A block with many learned numbers has them once, in ``weights.bin`` beside its graphs, and no ``plain.onnx``, whose
nodes saved would be few beside its products. A smaller block's graphs hold their own: each is one whole file.
"""

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import onnx
from torch import nn

from export.fast_path import FastPath, fast_paths
from export.graph import OPSET, export_graph
from export.rounding import rounding_twin
from export.scratch import scratch
from export.shared_weights import SharedWeights
from export.verification import CANONICAL, Check, Sessions, checks, session
from models.block import Block, Input
from models.catalogue import find
from models.examples import documented
from models.learned import SEED
from models.precision import in_precision

LARGE = 1_000_000  # learned numbers; the reference is slow with so many, and a copy of them for each graph weighs
VERIFIED = {
    "float16": "on the CPU, as it is and rounded to float16 after every operator",
    "bfloat16": "on the CPU, in float32 rounded to bfloat16 after every operator",
}
AS_IT_IS = " on the CPU"  # a graph, beside its rounding twin


class ExportError(Exception):
    """ONNX Runtime does not agree with the reference; nothing was written."""


def export_block(
    block: Block,
    repository: Path,
    version: int | None = None,
    beside: Iterable[Path] = (),
    cuda: bool = False,
    force: bool = False,
) -> Path:
    """Export, verify and write ``block``, with files ``beside`` it (a tokenizer); answers the folder written.

    Without a ``version`` it is the next, of a new name 1. With ``force`` it takes the place of ``version``, or of the
    newest. With ``cuda`` it has the fast paths of CUDA, too, which it always has in half precision.

    Raises:
        ExportError: the graphs are not right within their budgets, or the version exists. What stood in the repository
            still stands.
    """
    version = version or _free_version(repository / block.name, force)
    target = repository / block.name / str(version)
    if target.exists() and not force:
        raise ExportError(f"{target} exists; --force replaces it, and without --version the next is written")
    module = block.build()
    large = sum(parameter.numel() for parameter in module.parameters()) > LARGE
    matrices = [matrix for name, matrix in module.named_parameters() if matrix.ndim > 1 and "embedding" not in name]
    learned = sum(matrix.numel() for matrix in matrices)  # multiply-adds for each row, about
    paths = fast_paths(block, learned if large else 0, cuda)
    with written_whole(target, force) as folder:
        weights = SharedWeights(folder)
        graphs: dict[str, onnx.ModelProto] = {}
        for name, (inputs, outputs) in _graphs(block, paths, large).items():
            graphs[name] = export_graph(block, module, inputs, outputs, paths.get(name))
            if large:
                weights.take(graphs[name].graph)
        results = verify(block, module, _sessions(block, graphs, folder), paths, large)
        cards = {name: {"block": block.name, "fast_path": name} for name in graphs}
        cards |= {name: cards[name] | path.card() for name, path in paths.items()}
        cards[CANONICAL] = _card(block, version, learned, results)
        for name, graph in graphs.items():
            onnx.helper.set_model_props(graph, {"heed": json.dumps(cards[name], indent=1)})
            (folder / f"{name}.onnx").write_bytes(graph.SerializeToString(deterministic=True))
        for file in beside:
            shutil.copy(file, folder)
    return target


def export_builtin(
    name: str,
    repository: Path,
    version: int | None = None,
    dtype: str = "float32",
    cuda: bool = False,
    force: bool = False,
) -> Path:
    """``export_block`` of a built-in block, by its name: what a process of its own can be told to do."""
    return export_block(in_precision(find(name), dtype), repository, version, cuda=cuda, force=force)


def _free_version(folder: Path, force: bool) -> int:
    """The version after the newest in ``folder``; with ``force`` the newest itself."""
    versions = [int(path.name) for path in folder.glob("*") if path.name.isascii() and path.name.isdecimal()]
    return max(1, max(versions, default=0) + (not force))


def _sessions(block: Block, graphs: Mapping[str, onnx.ModelProto], folder: Path) -> Sessions:
    """A session of every graph on the CPU; in half precision of its rounding twin, and of float16 both."""
    if block.dtype == "float32":
        return {name: session(graph.SerializeToString(), folder) for name, graph in graphs.items()}
    twins = {name: session(rounding_twin(graph, folder).SerializeToString()) for name, graph in graphs.items()}
    if block.dtype == "bfloat16":  # the CPU has no kernels for it
        return twins
    return twins | {f"{name}{AS_IT_IS}": session(of.SerializeToString(), folder) for name, of in graphs.items()}


def verify(
    block: Block, module: nn.Module, sessions: Sessions, paths: Mapping[str, FastPath], large: bool
) -> list[Check]:
    """Every check of every graph; of a ``large`` block, of small requests only.

    Raises:
        ExportError: one failed.
    """
    fixes = {
        name: paths[name.removesuffix(AS_IT_IS)].fixes for name in sessions if name.removesuffix(AS_IT_IS) in paths
    }
    results = list(checks(block, module, sessions, fixes, large))
    failed = [check for check in results if not check.ok]
    if failed:
        worst = sorted(failed, key=lambda check: check.error / (check.budget or math.ulp(0)), reverse=True)[:5]
        listed = "".join(f"\n  {check}" for check in worst)
        some = f"{len(failed)} of {len(results)}"
        raise ExportError(f"{block.name}: {some} checks against the float64 reference failed{listed}")
    return results


def _graphs(block: Block, paths: Mapping[str, FastPath], large: bool) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """File name -> the inputs it takes and the outputs it answers."""
    graphs: dict[str, tuple[Sequence[str], Sequence[str]]] = {CANONICAL: (list(block.inputs), list(block.outputs))}
    if not large:
        graphs["plain"] = ([name for name, of in block.inputs.items() if of.required], ["output", "weights"])
    return graphs | {name: path.graph(block) for name, path in paths.items()}


def _card(block: Block, version: int, learned: int, results: list[Check]) -> dict[str, Any]:
    """What the artifact says of itself; names, shapes and types are the graph's own and are not repeated here."""
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
    } | ({} if block.dtype == "float32" else {"dtype": block.dtype, "verified": VERIFIED[block.dtype]})


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


@contextmanager
def written_whole(target: Path, force: bool) -> Iterator[Path]:
    """A fresh folder to write into, which becomes ``target`` when all is written, and only then."""
    with scratch(target.parent) as folder:
        fresh = folder / "fresh"
        fresh.mkdir()
        yield fresh
        if target.exists():
            if not force:
                raise ExportError(f"{target} was written by another export meanwhile, and stays as it is")
            target.rename(folder / "old")
        fresh.rename(target)
