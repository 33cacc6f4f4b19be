"""One graph of a model, which requests it can serve, and the same graph with more threads."""

import logging
import math
import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from service.base.cost import CostModel
from service.model.spec import FastPathSpec, Scalar
from service.ort.session import Arrays as Arrays
from service.ort.session import RunOptions as RunOptions
from service.ort.session import Session

log = logging.getLogger("heed")

MIN_PARALLEL_NS = 2_000_000  # of a run, from which more threads gain more than they take from other requests


@dataclass(frozen=True, eq=False)
class Graph:
    """The canonical graph of a model, or a fast path, which has fewer inputs or outputs."""

    session: Session
    inputs: frozenset[str]
    outputs: frozenset[str]
    spec: FastPathSpec | None = None  # None = the canonical graph
    fixed: Mapping[str, Scalar] = field(default_factory=dict)  # parameters that are not its inputs -> their value in it
    is_predictable: bool = True  # the cost of a run follows from the shapes of its inputs
    cost: CostModel = field(default_factory=CostModel)  # of a run in one thread, by RunEstimate.size
    multi_threaded: "MultiThreadedSession | None" = None
    workspace_bytes: int | None = None  # upper limit on the memory of a run beside its query and outputs, if it has one
    shared: "SharedPass | None" = None  # how tasks over the same stored tensors share a run

    @property
    def threads(self) -> int:
        """The most threads of a long run."""
        return self.multi_threaded.threads if self.multi_threaded else 1

    def for_size(self, size: int) -> "Graph":
        """This graph, or the one with more threads where a run of ``size`` is long enough to gain by them."""
        if self.multi_threaded is None:
            return self
        expected = self.cost.expected(size)
        if expected < MIN_PARALLEL_NS or expected == math.inf:
            return self
        return self.multi_threaded.graph_with(self)

    def preference(self) -> tuple[bool, int, int, float]:
        """A sort key: of several graphs that can serve a request, the one with the least key is the fastest."""
        rows = self.spec.rows if self.spec else None
        return "weights" in self.outputs, len(self.outputs), len(self.inputs), math.inf if rows is None else rows

    def can_serve(self, inputs: Arrays, outputs: Collection[str], pair_count: int, query_count: int) -> bool:
        """Whether it computes ``outputs`` from ``inputs``, and is worth it for so many queries and pairs with keys."""
        if not self.outputs.issuperset(outputs):
            return False
        if spec := self.spec:
            if pair_count < spec.from_pairs or query_count < spec.from_queries:
                return False
            if any(name not in inputs for name in spec.fixes) or (spec.needs and inputs.keys().isdisjoint(spec.needs)):
                return False
        others = inputs.keys() - self.inputs
        return all(name in self.fixed and bool(inputs[name] == self.fixed[name]) for name in others)

    def select_inputs(self, inputs: Arrays) -> Arrays:
        """``inputs`` without those that it does not have."""
        if inputs.keys() <= self.inputs:
            return inputs
        return {name: array for name, array in inputs.items() if name in self.inputs}


@dataclass(frozen=True)
class SharedPass:
    """How tasks share a run that reads their common tensors once: it takes little longer than a run of one task."""

    key: Callable[[Arrays], Hashable]  # of a task's inputs: tasks with equal keys can share a run
    join: Callable[[Sequence[Arrays]], Arrays]  # the inputs of the run, from those of its tasks
    split: Callable[[Arrays, Sequence[Arrays]], list[dict[str, np.ndarray]]]  # its outputs, for each task


class MultiThreadedSession:
    """A graph's session with more threads, opened at the first long run: most graphs never have one."""

    def __init__(self, open_session: Callable[[], Session], threads: int) -> None:
        self.threads = threads
        self._open_session = open_session
        self._lock = threading.Lock()
        self._graph: Graph | None = None

    def graph_with(self, graph: Graph) -> Graph:
        """``graph`` with that session, or ``graph`` itself where the session can no longer be opened."""
        with self._lock:
            if self._graph is None:
                try:
                    self._graph = replace(graph, session=self._open_session(), multi_threaded=None)
                except Exception as error:  # its file was removed, for example: requests are served without it
                    log.warning("a graph with more threads could not be opened: %s", error)
                    self._graph = graph
            return self._graph
