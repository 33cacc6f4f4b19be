"""Tasks of the engine that run the graphs of parts by themselves, several for one request."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np

from service.base.errors import TooMuchMemory
from service.engine.task import Execute, InferenceTask, StoredInputs
from service.model.estimate import RunEstimate
from service.model.graph import Arrays, Graph, RunOptions
from service.model.model import Model

Items = TypeVar("Items", np.ndarray, Sequence[int])
MAX_POSITIONS = 512  # of a run


@dataclass(frozen=True)
class OwnRun(StoredInputs):
    """A run, as the engine takes it: ``compute`` is called with its graph, in one thread or several."""

    compute: Callable[[Graph, RunOptions | None], None]

    def run(
        self, graph: Graph, _execute: Execute, _inputs: Arrays, _outputs: Sequence[str], options: RunOptions | None
    ) -> dict[str, np.ndarray]:
        """Compute, and return nothing.

        Raises:
            Exception: those of ``compute``.
        """
        self.compute(graph, options)
        return {}


def task_of(model: Model, estimate: RunEstimate, compute: Callable[[Graph, RunOptions | None], None]) -> InferenceTask:
    """The task that calls ``compute``."""
    return InferenceTask(model, estimate, {}, (), stored=OwnRun(compute))


def batches(items: Items, rows: int, estimate: Callable[[int], RunEstimate]) -> Iterator[tuple[Items, RunEstimate]]:
    """``items`` in their order, at most ``rows`` in a run, fewer where memory is short; ``estimate`` is of so many.

    Raises:
        TooMuchMemory: the run of one item needs too much.
    """
    start = 0
    while start < len(items):
        some = items[start : start + rows]
        try:
            needs = estimate(len(some))
        except TooMuchMemory:
            if len(some) == 1:
                raise
            rows = len(some) // 2
            continue
        start += len(some)
        yield some, needs


def in_order(first: InferenceTask, others: Iterable[InferenceTask], deadline: int | None) -> Iterator[InferenceTask]:
    """The runs of one request, none of which begins after ``deadline``. A full queue refuses only the first."""
    for task in chain([first], others):
        task.deadline, task.is_accepted = deadline, task is not first
        yield task
