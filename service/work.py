"""One decoded request as the engine takes it: what to run, how urgently, and what became of it."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from service.model import Graph, Model
from service.shape import Sizes

DEFAULT_PRIORITY = 100
FOREVER = 1e9  # nanoseconds, as nothing is known
UNSAID = 3  # times its inputs: what a run of a foreign graph is taken to need, which says nothing of it


@dataclass(slots=True, eq=False)
class Work:
    """A run that a request needs: ``graph`` is what ``model.graph_for`` said, ``sizes`` what ``model.bind`` said.

    The lower fields are the engine's to fill in; times are nanoseconds.
    """

    model: Model
    graph: Graph
    inputs: dict[str, np.ndarray]
    outputs: Sequence[str]
    sizes: Sizes
    rows: int = 1
    priority: int = 0  # 1 is the highest; 0 = as urgent as 100
    deadline: int | None = None  # of time.perf_counter_ns: it is not begun later
    size: int = field(init=False)  # Model.size

    queued: int = field(init=False, default=0)  # when it was queued, of time.perf_counter_ns
    waited: int = field(init=False, default=0)  # in the queue
    computed: int = field(init=False, default=0)  # from begin to end of the run that answered it
    run_rows: int = field(init=False, default=0)  # rows of that run, its own and its mates'
    leads: bool = field(init=False, default=False)  # one of each run does: runs are counted by it
    forecast: float = field(init=False, default=0)  # nanoseconds the run was expected to take when it was queued
    memory: int = field(init=False, default=0)  # bytes it needs at its peak, about
    alike: object = field(init=False, default=None)  # Layout.alike
    akin: object = field(init=False, default=None)  # Layout.akin
    future: "asyncio.Future[dict[str, np.ndarray]] | None" = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.size = self.model.size(self.inputs, self.sizes)

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
        self.forecast = min(self.expected, FOREVER)
        layout = self.model.layout
        if self.model.card:
            self.memory = self.model.memory(self.outputs, self.sizes, self.graph)
        else:
            self.memory = UNSAID * sum(array.nbytes for array in self.inputs.values())
        if layout and self.forecast <= shared:
            self.alike, self.akin = layout.alike(self), layout.akin(self)

    def run(self) -> dict[str, np.ndarray]:
        """Run it here and now, alone.

        Raises:
            Exception: what ``Model.run_graph`` raises.
        """
        start, spent = time.perf_counter_ns(), self.model.clock()
        found = self.model.run_graph(self.graph, self.inputs, self.outputs)
        self.graph.cost.learn(self.size, self.model.clock() - spent)
        self.computed = time.perf_counter_ns() - start
        self.run_rows, self.leads = self.batch, True
        return found
