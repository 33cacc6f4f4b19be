"""One decoded request as the engine takes it: what to run, how urgent it is, and how it was run."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np

from service.model.estimate import RunEstimate
from service.model.graph import Graph, RunOptions
from service.model.model import Model
from service.tensors.dims import Sizes

DEFAULT_PRIORITY = 100
Execute = Callable[[Mapping[str, np.ndarray], Sequence[str]], dict[str, np.ndarray]]
# Of a run on the event loop. To clear and to write more takes milliseconds, whatever a few short runs of as many
# multiply-adds have taken.
MAX_INLINE_BYTES = 8 << 20
UNKNOWN_RUN_NS = 1e9  # the forecast of a run where none of nearly its size was measured


class StoredInputs(Protocol):
    """Inputs that are not in the request, but in a source outside of it."""

    @property
    def is_quick(self) -> bool:
        """Whether the run needs no lock and no verification."""
        return False

    def verify(self) -> None:
        """Check the stored numbers before their first use in this process, which may take long."""
        return

    def run(
        self,
        graph: Graph,
        execute: Execute,
        inputs: Mapping[str, np.ndarray],
        outputs: Sequence[str],
        options: RunOptions | None,
    ) -> dict[str, np.ndarray]:
        """The ``outputs`` that ``execute`` computes with ``graph`` from ``inputs``, which include the stored ones.

        ``options`` are those of ``execute``.
        """


class TaskKind(Enum):
    """Tasks that take turns in the queue: of new requests, further prompts of a list, steps of a generation."""

    NEW = 0
    FURTHER = 1
    STEP = 2


@dataclass(slots=True, eq=False)
class InferenceTask:
    """A run that a request needs. The engine fills in the fields without an argument; moments are of
    ``time.perf_counter_ns``."""

    model: Model
    estimate: RunEstimate
    inputs: dict[str, np.ndarray]
    outputs: Sequence[str]
    rows: int = 1
    priority: int = 0  # 1 is the highest; 0 = DEFAULT_PRIORITY
    deadline: int | None = None  # the moment after which its run is not begun
    stored: StoredInputs | None = None  # such tasks share a run only where it is one pass over the same keys
    is_accepted: bool = False  # a further run of a request that was accepted: it waits even if the queue is full
    is_step: bool = False  # of a generation that was begun

    queued_at_ns: int = field(init=False, default=0)  # the moment when it was queued
    queue_ns: int = field(init=False, default=0)  # time in the queue
    compute_ns: int = field(init=False, default=0)  # time of the run that computed its outputs
    run_rows: int = field(init=False, default=0)  # rows of that run, of all tasks in it
    counts_run: bool = field(init=False, default=False)  # True for one task of each run, by which runs are counted
    forecast_ns: float = field(init=False, default=0)  # what the run was expected to take when it was queued
    has_estimate: bool = field(init=False, default=False)  # the forecast is from measured runs
    stack_key: object = field(init=False, default=None)  # BatchingRules.stack_key
    options: RunOptions | None = field(init=False, default=None)  # of a run that may take long
    future: "asyncio.Future[dict[str, np.ndarray]] | None" = field(init=False, default=None)

    @property
    def graph(self) -> Graph:
        return self.estimate.graph

    @property
    def sizes(self) -> Sizes:
        return self.estimate.sizes

    @property
    def size(self) -> int:
        return self.estimate.size

    @property
    def memory(self) -> int:
        return self.estimate.memory

    @property
    def batch(self) -> int:
        """The size of its batch axis. V2 counts no rows where that is not the first axis of every tensor."""
        return self.sizes["batch"] if self.model.spec else self.rows

    @property
    def kind(self) -> TaskKind:
        """By which it takes turns with others in the queue."""
        return TaskKind.STEP if self.is_step else TaskKind.FURTHER if self.is_accepted else TaskKind.NEW

    @property
    def priority_level(self) -> int:
        return self.priority or DEFAULT_PRIORITY

    @property
    def is_late(self) -> bool:
        return self.deadline is not None and time.perf_counter_ns() > self.deadline

    @property
    def may_run_inline(self) -> bool:
        """Whether its run is as short as its cost says, and in time."""
        graph = self.graph
        is_small = self.memory <= MAX_INLINE_BYTES or graph.workspace_bytes is not None
        is_quick = self.stored is None or self.stored.is_quick
        return graph.is_predictable and is_small and is_quick and not self.is_late

    @property
    def expected_ns(self) -> float:
        """What the run is expected to take, from measured runs; infinity where there is none."""
        estimate = self.estimate
        return estimate.graph.cost.expected(estimate.size)

    def compute_queue_keys(self, max_shared_ns: float) -> None:
        """Compute what the queue needs to know.

        It may share a run if its own takes at most ``max_shared_ns``, or any time where tasks share a pass; with 0 it
        shares none.
        """
        self.has_estimate = self.estimate.graph.cost.knows(self.estimate.size)
        self.forecast_ns = self.expected_ns if self.has_estimate else UNKNOWN_RUN_NS
        batching = self.model.batching
        if batching and self._may_share(max_shared_ns):
            self.stack_key = batching.stack_key(self.graph, self.inputs, self.outputs)

    def _may_share(self, max_shared_ns: float) -> bool:
        if self.stored is not None and not self.stored.is_quick:
            return False
        if self.graph.shared is not None:  # a pass over the same keys takes little longer for all than for one
            return max_shared_ns > 0
        return self.stored is None and self.forecast_ns <= max_shared_ns

    def cancel(self) -> None:
        """Take it out of the queue; a run in progress ends between two operators if it may take long."""
        if self.future is not None:
            self.future.cancel()

    def terminate(self) -> None:
        """End its run, if it is in progress and may take long; ONNX Runtime reads the flag between two operators."""
        if self.options is not None:
            self.options.terminate = True
