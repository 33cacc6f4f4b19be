"""Tasks of the engine that run the graphs of parts by themselves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from service.engine.task import Execute, InferenceTask
from service.model.estimate import RunEstimate
from service.model.graph import Arrays, Graph, RunOptions
from service.model.model import Model


@dataclass(frozen=True)
class OwnRun:
    """A run, as the engine takes it: ``compute`` is called with its graph, in one thread or several."""

    compute: Callable[[Graph, RunOptions | None], None]
    is_quick = False

    def verify(self) -> None:
        """Nothing is to be checked."""

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
