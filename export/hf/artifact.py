"""Verify a model of transformers and write it as ONNX files: all of them or none.

``model.onnx`` has every input and output, ``weights.onnx`` lacks the rare ones. The others lack the weights
(``export.hf.fused``), or compute a step of generation (``export.hf.generation``), or let a request change activations
(``export.hf.interventions``).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from torch import nn

from export.artifact import COMMON, block_spec, choose_target, refuse_failed, write_files, written_whole
from export.graphs.graph import export_graph, part_of
from export.graphs.shared_weights import SharedWeights
from export.hf.description import block_of, learned_numbers, rows_of
from export.hf.fused import OUTPUT, TransformersPath, common_path, fast_paths, tower_paths
from export.hf.generation.graphs import Generation, generation_graphs
from export.hf.interventions.graphs import intervention_graphs
from export.hf.pooling import Pooling
from export.hf.pretrained import ModelRefused, Pretrained, reason_of
from export.hf.tokenizer import TOKENIZER_FILE
from export.hf.verification.examples import SIZES, documented
from export.hf.verification.verifier import ANSWERS, Report, Verifier, sizes_of
from export.hf.wrapper import Wrapper
from export.interventions.graphs import Interventions
from export.verification.checks import CANONICAL
from export.verification.sessions import session
from models.block import Block
from models.learned import LARGE

DRAWING = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def export_model(
    pretrained: Pretrained,
    name: str,
    repository: Path,
    version: int | None,
    force: bool,
    report: Report,
    quantize: bool = False,
) -> Path:
    """Export, verify and write a model as ``name``; return the folder written.

    ``report`` is called with each step. Without ``version``, the version is the newest in the repository plus 1; with
    ``force``, it replaces ``version``, or the newest. With ``quantize``, steps of generation have 8-bit weights.

    Raises:
        ModelRefused: an input or output cannot be described, or torch cannot export it.
        ExportError: a graph differs from the model, or the version exists. The repository is unchanged.
    """
    target = choose_target(repository / name, version, force)
    report(f"describing {pretrained.kind}")
    block, original = block_of(pretrained, name)
    learned = learned_numbers(pretrained.model)
    with written_whole(target, force) as folder:
        weights = SharedWeights(folder) if sum(x.numel() for x in pretrained.model.parameters()) > LARGE else None
        tracer = _Tracer(block, weights, report)
        verifier = Verifier(block, original, learned, report)
        graphs = {CANONICAL: tracer.graph(CANONICAL, block.build(), list(block.outputs))}
        paths = {COMMON: common_path(block, pretrained.model)} if block.rare else {}
        for path_name, path in paths.items():
            graphs[path_name] = tracer.graph(path_name, block.build(), list(path.outputs), path)
        results = verifier.complete(
            {
                path_name: session(graph.SerializeToString(), folder, prepack=path_name == CANONICAL)
                for path_name, graph in graphs.items()
            }
        )
        refuse_failed(name, results, "transformers in float64")
        common = [name for name in block.inputs if name not in block.rare]
        ways = fast_paths(pretrained.model, common, learned if weights else 0)
        for path_name, several in ways.items():
            if chosen := _fast_path(path_name, several, pretrained.pooling, tracer, verifier, folder):
                paths[path_name], graphs[path_name] = chosen
        for path_name, path in tower_paths(block).items() if OUTPUT in graphs else ():
            paths[path_name] = path
            graphs[path_name] = part_of(graphs[OUTPUT], path.takes, path.outputs)
            checks = verifier.fast_path(path_name, session(graphs[path_name].SerializeToString(), folder))
            refuse_failed(name, checks, "transformers in float64")
        try:
            generation = generation_graphs(block, original, weights, folder, quantize, report)
        except ModelRefused as error:
            generation = Generation({}, {"refused": str(error)})
        try:
            interventions = intervention_graphs(block, original, graphs[CANONICAL], generation, folder, report)
        except ModelRefused as error:
            interventions = Interventions({}, {"refused": str(error)})
        report("writing")
        specs = {path_name: {"block": name, "fast_path": path_name} | path.spec() for path_name, path in paths.items()}
        if COMMON in specs:
            specs[COMMON]["is_common"] = True
        specs[CANONICAL] = block_spec(block, int(target.name), learned, results, documented(block.inputs))
        specs[CANONICAL] |= _own_entries(block, learned)
        specs[CANONICAL] |= {"generation": generation.entry, "interventions": interventions.entry}
        of_features = generation.graphs | interventions.graphs
        specs |= {graph: {"block": name, "feature": graph} for graph in of_features}
        graphs |= of_features
        write_files(folder, graphs, specs, pretrained.companions)
        if pretrained.tokenizer:
            (folder / TOKENIZER_FILE).write_text(pretrained.tokenizer)
    return target


@dataclass(frozen=True)
class _Tracer:
    """Traces the graphs of one model, which share ``weights``."""

    block: Block
    weights: SharedWeights | None
    report: Report

    def graph(
        self, name: str, module: nn.Module, outputs: list[str], path: TransformersPath | None = None
    ) -> onnx.ModelProto:
        """The graph of ``module`` with these outputs, and with the inputs that ``path`` has.

        Raises:
            ModelRefused: torch cannot export it.
        """
        self.report(f"tracing {name}.onnx")
        inputs = [name for name in self.block.inputs if path is None or name in path.takes]
        try:
            graph = export_graph(self.block, module, inputs, outputs, path, SIZES["distinct"], self.weights)
        except ModelRefused:
            raise
        except Exception as error:  # torch's exporter raises errors of many types
            raise ModelRefused(f"torch cannot export it: {_reason(error)}") from None
        if drawing := {node.op_type for node in graph.graph.node} & DRAWING:
            raise ModelRefused(f"{name}.onnx draws random numbers: it has the operator {min(drawing)}")
        return graph


def _reason(error: BaseException) -> str:
    """The first line of the error that caused torch's, whose own text is only advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return reason_of(error)


def _fast_path(
    name: str,
    ways: Sequence[TransformersPath],
    pooling: Pooling | None,
    tracer: _Tracer,
    verifier: Verifier,
    folder: Path,
) -> tuple[TransformersPath, onnx.ModelProto] | None:
    """The first of several ways to compute a fast path that torch can export and that passes verification.

    A model may compute more than a kernel does, such as sinks.
    """
    for path in ways:
        assert path.model is not None
        module = Wrapper(path.model, with_weights=False, pooling=pooling).eval()
        with suppress(ModelRefused):
            graph = tracer.graph(name, module, [output for output in tracer.block.outputs if output in ANSWERS], path)
            checks = verifier.fast_path(name, session(graph.SerializeToString(), folder))
            if all(check.ok for check in checks):
                return path, graph
    return None


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
        **rows_of(block),
        "exporter": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "verified": f"on the CPU, against transformers {transformers.__version__} with eager attention in float64"
        + (f", {lengths}" if lengths else ""),
    }
