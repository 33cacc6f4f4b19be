"""One decoded request as the engine takes it: what to run, how urgently, and what became of it."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from service.graph import Graph
from service.model import Model, Need
from service.shape import Sizes

DEFAULT_PRIORITY = 100
FOREVER = 1e9  # nanoseconds, as nothing is known


@dataclass(slots=True, eq=False)
class Work:
    """A run that a request needs. The lower fields are the engine's to fill in; times are nanoseconds."""

    model: Model
    need: Need
    inputs: dict[str, np.ndarray]
    outputs: Sequence[str]
    rows: int = 1
    priority: int = 0  # 1 is the highest; 0 = as urgent as 100
    deadline: int | None = None  # of time.perf_counter_ns: it is not begun later

    queued: int = field(init=False, default=0)  # when it was queued, of time.perf_counter_ns
    waited: int = field(init=False, default=0)  # in the queue
    computed: int = field(init=False, default=0)  # from begin to end of the run that answered it
    run_rows: int = field(init=False, default=0)  # rows of that run, its own and its mates'
    leads: bool = field(init=False, default=False)  # one of each run does: runs are counted by it
    forecast: float = field(init=False, default=0)  # nanoseconds the run was expected to take when it was queued
    is_known: bool = field(init=False, default=False)  # what it takes, as such runs were made before
    alike: object = field(init=False, default=None)  # Layout.alike
    akin: object = field(init=False, default=None)  # Layout.akin
    future: "asyncio.Future[dict[str, np.ndarray]] | None" = field(init=False, default=None)

    @property
    def graph(self) -> Graph:
        return self.need.graph

    @property
    def sizes(self) -> Sizes:
        return self.need.sizes

    @property
    def size(self) -> int:
        return self.need.size

    @property
    def memory(self) -> int:
        return self.need.memory

    @property
    def batch(self) -> int:
        """How long its batch axis is; V2 counts no rows where a model's axis is not the first everywhere."""
        return self.sizes["batch"] if self.model.card else self.rows

    @property
    def rank(self) -> int:
        return self.priority or DEFAULT_PRIORITY

    @property
    def is_late(self) -> bool:
        return self.deadline is not None and time.perf_counter_ns() > self.deadline

    @property
    def expected(self) -> float:
        """Nanoseconds the run will take, by what such runs took; infinity where there was none."""
        return self.graph.cost.expected(self.size)

    def prepare(self, shared: float) -> None:
        """Work out all that the queue has to know; it may share a run if it takes ``shared`` nanoseconds or less."""
        expected = self.expected
        self.is_known = math.isfinite(expected)
        self.forecast = expected if self.is_known else FOREVER
        layout = self.model.layout
        if layout and self.forecast <= shared:
            self.alike, self.akin = layout.alike(self), layout.akin(self)

    def run(self) -> dict[str, np.ndarray]:
        """Run it here and now, alone.

        Raises:
            Exception: what ``Model.run`` raises.
        """
        need, model = self.need, self.model
        cost = need.graph.cost
        is_due = cost.is_due(need.size)
        graph = need.graph.for_size(need.size, is_due)
        is_due = is_due and graph is need.graph  # the clock of this thread knows nothing of others
        start, spent = time.perf_counter_ns(), model.clock() if is_due else 0
        found = model.run(graph, self.inputs, self.outputs)
        if is_due:
            cost.learn(need.size, model.clock() - spent)
        self.computed = time.perf_counter_ns() - start
        self.run_rows, self.leads = self.batch, True
        return found
