"""Verify a block and write it as ONNX files with a description in their metadata: all of them or none.

``<repository>/<name>/<version>/model.onnx``, the canonical graph, has every option and every output. ``learned.onnx``
lacks the inputs that replace learned tensors. ``weights.onnx`` lacks ``lse`` and the rare inputs and outputs
(``Block.rare``); ``lse.onnx`` is the same with ``lse``. ``plain.onnx`` is the same function without options: it builds
no mask, so that a small request runs half the nodes. The other files are fast paths, for requests that do not need the
attention weights (``export.kernels.fast_path``).

The graphs of a block with many weights share them in ``weights.bin``. Such a block has no ``plain.onnx``: its matrix
products take so long that fewer nodes save nothing. In a smaller block each graph contains the weights.

``interventions.onnx`` of a stack of layers lets a request change its activations (``export.interventions``).
"""

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import onnx
from torch import nn

from export.graphs.decomposition import OPSET
from export.graphs.graph import export_graph, part_of
from export.graphs.joint_trace import joint_graphs
from export.graphs.shared_weights import SharedWeights
from export.interventions.graphs import of_stack
from export.kernels.fast_path import FastPath, fast_paths
from export.scratch import scratch
from export.verification.checks import CANONICAL, Check, checks
from export.verification.rounding import rounding_twin
from export.verification.sessions import Sessions, session
from models.block import Block, Input
from models.catalogue import find
from models.examples import documented
from models.learned import LARGE, SEED, demonstration
from models.precision import in_precision

LEARNED = "learned"  # the graph of requests that replace no learned tensor; constants are multiplied faster
COMMON = "weights"  # the graph of requests without rare inputs and outputs
LSE = "lse"  # an expensive output; its graph also lacks the rare inputs and outputs
VERIFIED = {
    "float16": "on the CPU, as it is and rounded to float16 after every operator",
    "bfloat16": "on the CPU, in float32 rounded to bfloat16 after every operator",
}
AS_IT_IS = " on the CPU"  # suffix of a float16 graph beside its rounding twin
Tensors = tuple[Sequence[str], Sequence[str]]  # the names of a graph's inputs and outputs


class ExportError(Exception):
    """The block failed its verification, or the version exists; nothing was written."""


def export_block(
    block: Block,
    repository: Path,
    version: int | None = None,
    extra_files: Iterable[Path] = (),
    cuda: bool = False,
    force: bool = False,
) -> Path:
    """Export, verify and write ``block`` with copies of ``extra_files`` (a tokenizer); return the folder written.

    Without ``version``, the version is the newest in the repository plus 1. With ``force``, it replaces ``version``,
    or the newest. With ``cuda``, the fast paths for CUDA are exported too, as always in half precision.

    Raises:
        ExportError: an error exceeds its budget, or the version exists. The repository is unchanged.
    """
    target = choose_target(repository / block.name, version, force)
    module = block.build()
    # The graphs of a large block share its weights, and are verified with fewer examples.
    large = sum(parameter.numel() for parameter in module.parameters()) > LARGE
    matrices = [matrix for name, matrix in module.named_parameters() if matrix.ndim > 1 and "embedding" not in name]
    learned = sum(matrix.numel() for matrix in matrices)  # roughly the multiply-adds of one row, too
    paths = fast_paths(block, learned if large else 0, cuda)
    with written_whole(target, force) as folder:
        weights = SharedWeights(folder)
        graphs: dict[str, onnx.ModelProto] = {}
        parts = _graphs(block, paths, large)
        joint = joint_graphs(block, module, paths)
        formulas = {name for name in parts if name not in paths or not (paths[name].kernel or paths[name].fixes)}
        for name, (inputs, outputs) in parts.items():
            alike = (other for other in graphs if {name, other} <= formulas)
            whole = next((other for other in alike if _is_part(block, parts[name], parts[other])), None)
            if name in joint:
                graphs[name] = joint[name]
            elif whole:  # cutting a part out of another graph takes no time
                graphs[name] = part_of(graphs[whole], inputs, outputs)
            else:
                graphs[name] = export_graph(block, module, inputs, outputs, paths.get(name))
            if large:
                weights.move(graphs[name].graph)
        results = verify(block, module, _sessions(block, graphs, folder), paths, large)
        specs: dict[str, Any] = {name: {"block": block.name, "fast_path": name} for name in graphs}
        if COMMON in specs:
            specs[COMMON]["is_common"] = True
        specs |= {name: specs[name] | path.spec() for name, path in paths.items()}
        specs[CANONICAL] = block_spec(block, int(target.name), learned, results, documented(block))
        if interventions := of_stack(block, module, graphs[CANONICAL], folder):
            specs[CANONICAL]["interventions"] = interventions.entry
            specs |= {name: {"block": block.name, "feature": name} for name in interventions.graphs}
            graphs |= interventions.graphs
        write_files(folder, graphs, specs, extra_files)
    return target


def export_builtin(
    name: str,
    repository: Path,
    version: int | None = None,
    dtype: str = "float32",
    cuda: bool = False,
    force: bool = False,
) -> Path:
    """``export_block`` of the built-in block ``name``. Its arguments can be pickled, for a worker process."""
    return export_block(in_precision(find(name), dtype), repository, version, cuda=cuda, force=force)


def choose_target(folder: Path, version: int | None, force: bool) -> Path:
    """The folder of ``version`` in a model's ``folder``, by default the newest plus 1, or with ``force`` the newest.

    Raises:
        ExportError: the folder exists, and ``force`` is not given.
    """
    if version is None:
        versions = [int(path.name) for path in folder.glob("*") if path.name.isascii() and path.name.isdecimal()]
        version = max(1, max(versions, default=0) + (not force))
    target = folder / str(version)
    if target.exists() and not force:
        raise ExportError(f"{target} exists; --force replaces it, and without --version a new version is written")
    return target


def write_files(
    folder: Path, graphs: Mapping[str, onnx.ModelProto], specs: Mapping[str, Any], extra_files: Iterable[Path]
) -> None:
    """Write each graph with its metadata from ``specs``, and copies of ``extra_files``."""
    for name, graph in graphs.items():
        onnx.helper.set_model_props(graph, {"heed": json.dumps(specs[name], indent=1)})
        (folder / f"{name}.onnx").write_bytes(graph.SerializeToString(deterministic=True))
    for file in extra_files:
        shutil.copy(file, folder)


def _sessions(block: Block, graphs: Mapping[str, onnx.ModelProto], folder: Path) -> Sessions:
    """A CPU session of every graph; bfloat16 has only those of the rounding twins, float16 has both."""
    if block.dtype == "float32":
        return {name: session(graph.SerializeToString(), folder) for name, graph in graphs.items()}
    twins = {name: session(rounding_twin(graph, folder).SerializeToString()) for name, graph in graphs.items()}
    if block.dtype == "bfloat16":  # the CPU has no kernels for it
        return twins
    as_they_are = {f"{name}{AS_IT_IS}": session(graph.SerializeToString(), folder) for name, graph in graphs.items()}
    return twins | as_they_are


def verify(
    block: Block, module: nn.Module, sessions: Sessions, paths: Mapping[str, FastPath], large: bool
) -> list[Check]:
    """Compare every graph with the reference; with a ``large`` block, on small examples only.

    Raises:
        ExportError: a check failed; the message lists the worst.
    """
    fixes = {
        name: paths[name.removesuffix(AS_IT_IS)].fixes for name in sessions if name.removesuffix(AS_IT_IS) in paths
    }
    results = list(checks(block, module, sessions, fixes, large))
    refuse_failed(block.name, results, "the float64 reference")
    return results


def refuse_failed(name: str, results: Sequence[Check], reference: str) -> None:
    """Raises ExportError if a check failed; the message lists the worst."""
    failed = [check for check in results if not check.ok]
    if failed:
        worst = sorted(failed, key=lambda check: check.error / (check.budget or math.ulp(0)), reverse=True)[:5]
        details = "".join(f"\n  {check}" for check in worst)
        raise ExportError(f"{name}: {len(failed)} of {len(results)} checks against {reference} failed{details}")


def _is_part(block: Block, part: Tensors, whole: Tensors) -> bool:
    """Whether the graph ``part`` is ``whole`` without some outputs, and with constants for learned tensors."""
    dropped = set(whole[0]) - set(part[0])
    is_subset = set(part[0]) <= set(whole[0]) and set(part[1]) <= set(whole[1])
    return is_subset and all(block.inputs[name].learned for name in dropped)


def _graphs(block: Block, paths: Mapping[str, FastPath], large: bool) -> dict[str, Tensors]:
    """File name -> the names of the graph's inputs and outputs."""
    graphs: dict[str, Tensors] = {CANONICAL: (list(block.inputs), list(block.outputs))}
    learned = [name for name, spec in block.inputs.items() if spec.learned]
    if learned and set(learned) != set(block.rare):
        graphs[LEARNED] = [name for name in block.inputs if name not in learned], list(block.outputs)
    inputs = [name for name in block.inputs if name not in block.rare]
    outputs = [name for name in block.outputs if name not in block.rare]
    if block.rare and LSE in outputs:
        graphs[LSE] = inputs, outputs
    if block.rare or LSE in outputs:
        graphs[COMMON] = inputs, [name for name in outputs if name != LSE]
    if not large:
        graphs["plain"] = ([name for name, spec in block.inputs.items() if spec.required], ["output", "weights"])
    return graphs | {name: path.graph(block) for name, path in paths.items()}


def block_spec(
    block: Block, version: int, learned: int, results: list[Check], example: dict[str, Any]
) -> dict[str, Any]:
    """The canonical graph's metadata, without names, shapes and types, which the graph declares."""
    return {
        "block": block.name,
        "version": version,
        "title": block.title,
        "description": block.description,
        "formula": block.formula,
        "source": block.source,
        "config": dict(block.config),
        "weights": block.weights or (demonstration(SEED) if learned else "none"),
        "inputs": {name: _input_spec(spec) for name, spec in block.inputs.items()},
        "outputs": {name: {"description": spec.description} for name, spec in block.outputs.items()},
        "multiples": dict(block.multiples),
        "limits": dict(block.limits),
        "left_out": dict(block.left_out),
        "on_request": [name for name in block.outputs if name in (LSE, *block.rare)],
        "depth": block.depth,
        "pair_numbers": block.pair_numbers,
        "linear": block.linear,
        "learned": learned,
        "example": example,
        "tolerance": {name: max(check.budget for check in results if check.output == name) for name in block.outputs},
        "opset": OPSET,
        "exporter": f"torch {installed('torch')}",
    } | ({} if block.dtype == "float32" else {"dtype": block.dtype, "verified": VERIFIED[block.dtype]})


def _input_spec(spec: Input) -> dict[str, Any]:
    default = None if isinstance(spec.default, float) and math.isnan(spec.default) else spec.default
    fields = {
        "description": spec.description,
        "default": default if spec.shape == () else None,
        "minimum": spec.minimum,
        "maximum": spec.maximum,
        "needs": list(spec.needs),
        "excludes": list(spec.excludes),
        "only_for": list(spec.only_for),
        "mask": spec.mask or None,
        "placeholder": asdict(spec.placeholder) if spec.placeholder else None,
    }
    return {key: value for key, value in fields.items() if value is not None and value != []}


@contextmanager
def written_whole(target: Path, force: bool) -> Iterator[Path]:
    """A new folder to write to, which is renamed to ``target`` when the block ends without an error.

    Raises:
        ExportError: without ``force``, another process has written ``target`` in the meantime.
    """
    with scratch(target.parent) as folder:
        fresh = folder / "fresh"
        fresh.mkdir()
        yield fresh
        if target.exists():
            if not force:
                raise ExportError(f"another export has written {target} in the meantime; it was kept")
            target.rename(folder / "old")
        fresh.rename(target)
