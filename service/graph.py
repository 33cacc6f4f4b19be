"""One graph of a model, which of its requests it serves, and the same graph with more threads."""

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnxruntime

from service.card import PathCard, Scalar
from service.cost import Cost
from service.cuda_graphs import Captured

log = logging.getLogger("heed")

Arrays = Mapping[str, np.ndarray]
WIDE = 2_000_000  # nanoseconds of a run from which more threads gain more than they take from everybody else


@dataclass(frozen=True, eq=False)
class Graph:
    """One graph of the model: the canonical one, or a fast path that takes and answers less."""

    session: onnxruntime.InferenceSession
    takes: frozenset[str]
    answers: frozenset[str]
    card: PathCard | None = None
    fixed: Mapping[str, Scalar] = field(default_factory=dict)  # parameters it does not take -> the value they stand at
    cost: Cost = field(default_factory=Cost)  # of a run in one thread, by Model.size
    wide: "Wide | None" = None  # the same with more threads
    captured: Captured | None = None  # the same as CUDA graphs

    def for_size(self, size: int, to_learn: bool) -> "Graph":
        """This graph, or the one with more threads where a run of this size is long enough to gain by them.

        Now and then (``to_learn``) a run that is hardly so goes without, lest one slow moment is remembered for ever.
        """
        if self.wide is None:
            return self
        expected = self.cost.expected(size)
        if expected < WIDE or expected == math.inf or (to_learn and expected < 10 * WIDE):
            return self
        return self.wide.of(self)

    def burden(self) -> tuple[bool, int, int, float]:
        """Of two graphs that serve a request, the lesser is the quicker: weights cost more than all else."""
        rows = self.card.rows if self.card else None
        return "weights" in self.answers, len(self.answers), len(self.takes), math.inf if rows is None else rows

    def serves(self, given: Arrays, wanted: Collection[str], pairs: int) -> bool:
        if not self.answers.issuperset(wanted) or (self.card and pairs < self.card.from_pairs):
            return False
        if any(name not in given for name in (self.card.fixes if self.card else ())):
            return False
        others = given.keys() - self.takes
        return all(name in self.fixed and bool(given[name] == self.fixed[name]) for name in others)

    def taken(self, given: Arrays) -> Arrays:
        return given if given.keys() <= self.takes else {name: of for name, of in given.items() if name in self.takes}

    def run(self, given: Arrays, wanted: Sequence[str]) -> list[np.ndarray]:
        found: list[np.ndarray] = self.session.run(list(wanted), self.taken(given))
        return found


class Wide:
    """A session with more threads: opened when the first long run asks for it, as most graphs never have one."""

    def __init__(self, opened: Callable[[], onnxruntime.InferenceSession]) -> None:
        self._opened = opened
        self._lock = threading.Lock()
        self._graph: Graph | None = None

    def of(self, graph: Graph) -> Graph:
        """``graph`` with that session; as it is where the session cannot be had any more."""
        with self._lock:
            if self._graph is None:
                try:
                    self._graph = replace(graph, session=self._opened(), wide=None)
                except Exception as error:  # its file was removed, say: what runs goes on
                    log.warning("a graph with more threads could not be opened: %s", error)
                    self._graph = graph
            return self._graph
