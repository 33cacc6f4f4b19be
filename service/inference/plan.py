"""The plan of a run, which follows from the shapes of a request's inputs, its outputs and its options of the weights.

Requests that agree in these have one plan, so the APIs cache it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.inference.source import SourceInputs
from service.model.estimate import RunEstimate
from service.model.model import Model
from service.selection.answer import Answer, graph_outputs, needs_answer, plan_answer
from service.selection.options import Selection

MAX_CACHED_INDICES = 32


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run, and how the answered outputs follow from those of its graph."""

    estimate: RunEstimate
    graph_outputs: list[str]
    answer: Answer | None  # None = the outputs are those of the graph

    @property
    def may_be_cached(self) -> bool:
        """Whether it is small: lists of many indices, of many plans, would fill the memory."""
        return self.answer is None or self.answer.index_count <= MAX_CACHED_INDICES


def run_outputs(model: Model, outputs: Sequence[str], computed: Sequence[str] = ()) -> list[str]:
    """The outputs of the graph that a run computes: those that ``outputs`` need, and those ``computed``, each once."""
    names = graph_outputs(outputs, model.signature) if model.spec else outputs
    return [*dict.fromkeys((*names, *computed))]


def plan_run(
    model: Model,
    inputs: dict[str, np.ndarray],
    outputs: Sequence[str],
    selection: Selection,
    max_memory_bytes: int,
    computed: Sequence[str] = (),
    stored: SourceInputs | None = None,
) -> RunPlan:
    """The plan of a request for ``outputs``; those that are ``computed`` are not answered.

    ``inputs`` are all that the graph takes, as it takes them, with those of a source, which has ``stored`` them.

    Raises:
        WrongSize: inputs do not fit each other.
        Invalid: a tensor or option that is wrong; ``field`` names it.
        TooMuchMemory: it would need more than ``max_memory_bytes`` bytes.
    """
    names = run_outputs(model, outputs, computed)
    if stored is None:
        estimate = model.estimate(inputs, names, model.bind(inputs), max_memory_bytes)
    else:
        estimate = stored.estimate(inputs, names, max_memory_bytes)
    answer = None
    if model.spec and needs_answer(outputs, selection, model.signature):
        answer = plan_answer(model.signature, outputs, selection, estimate.sizes, model.name)
    return RunPlan(estimate, names, answer)
