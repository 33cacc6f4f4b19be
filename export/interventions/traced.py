"""A graph whose activations are known: their shapes in one run, and a session that returns them by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from onnxruntime import InferenceSession

from export.interventions.sites import Shapes, candidates
from export.verification.sessions import Arrays, run_outputs, session


@dataclass(frozen=True)
class Traced:
    """``shapes`` are those of all candidates for sites, which ``plain`` returns."""

    graph: ir.Graph
    plain: InferenceSession
    shapes: Shapes


def trace(model: onnx.ModelProto, folder: Path, example: Callable[[InferenceSession], Arrays]) -> Traced:
    """The activations of ``model`` in a run with the inputs ``example``; ``folder`` has its weights."""
    graph = ir.from_proto(model).graph
    names = [str(value.name) for value in candidates(graph)]
    known = {output.name for output in model.graph.output}
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    plain = session(extended.SerializeToString(), folder, prepack=False)
    values = run_outputs(plain, names, example(plain))
    return Traced(graph, plain, {name: value.shape for name, value in values.items()})
