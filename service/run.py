"""One run of ONNX Runtime: a work alone, or several that share it because together they are quicker."""

import time
from collections.abc import Iterable, Sequence

from service import batch
from service.batch import Arrays
from service.graph import Graph
from service.work import Work

MOST_ROWS = 1024
MOST_SAVED = 8  # a shared run takes no longer than so many times what each saves: the first waits for all
PART_SAVED = 0.5  # of what a work saves, how much the longer run of padded ones may take
NEAR = 2  # works are padded to such as are less than so many times larger

Told = Sequence[tuple[Work, Arrays | BaseException]]


class Run:
    """Works, the first of which is run in any case; others may join it."""

    def __init__(self, first: Work) -> None:
        self.works = [first]
        self.graph: Graph = first.graph
        self.rows = first.batch
        self.memory = first.memory  # bytes, about
        self.padded = False
        self._size = first.size
        self._expected = first.forecast  # nanoseconds

    def stack(self, others: Iterable[Work], most: int, memory: int, saved: float) -> None:
        """Let ``others``, which are alike, join, up to ``most`` works and ``memory`` bytes.

        ``saved`` are the nanoseconds that each saves because it needs no run of its own.
        """
        for work in others:
            if work is self.works[0]:
                continue
            rows, size, needed = self.rows + work.batch, self._size + work.size, self.memory + work.memory
            expected = min(self._expected + work.forecast, self.graph.cost.expected(size))
            if len(self.works) >= most or rows > MOST_ROWS or needed > memory or expected > MOST_SAVED * saved:
                return
            self.works.append(work)
            self.rows, self._size, self.memory, self._expected = rows, size, needed, expected

    def pad(self, others: Iterable[Work], most: int, memory: int, saved: float) -> None:
        """Let ``others``, which are akin and about as large, join if the longer run, on a graph that masks, pays."""
        first, works, apart = self.works[0], list(self.works), sum(work.forecast for work in self.works)
        for work in others:
            near = work.size * first.batch < NEAR * first.size * work.batch < NEAR**2 * work.size * first.batch
            if near and work.alike != first.alike:
                works.append(work)
                apart += work.forecast
            if len(works) >= most or apart > MOST_SAVED * saved:
                break
        if len(works) == len(self.works):
            return
        layout, largest = first.model.layout, max(works, key=lambda work: work.size / work.batch)
        assert layout is not None, "it is akin"
        if any(work.sizes[name] > largest.sizes[name] for work in works for name in layout.lengths):
            return  # one has more queries, another more keys: the run would be larger than any
        graph, rows = layout.masked_graph(largest), sum(work.batch for work in works)
        size, needed = (rows * of_all // largest.batch for of_all in (largest.size, largest.memory))
        pays = graph.cost.expected(size) < apart + PART_SAVED * saved * (len(works) - 1)
        if pays and rows <= MOST_ROWS and needed <= memory:
            self.works, self.graph, self.padded = works, graph, True
            self.rows, self._size, self.memory = rows, size, needed

    def answers(self) -> Told:
        """Each work's answer, or what its run raised. Where the shared run fails, each is run alone."""
        if len(self.works) == 1:
            return [(self.works[0], _alone(self.works[0]))]
        try:
            return list(zip(self.works, self._together(), strict=True))
        except Exception:
            return [(work, _alone(work)) for work in self.works]

    def _together(self) -> Sequence[Arrays]:
        model = self.works[0].model
        start, spent = time.perf_counter_ns(), model.clock()
        layout = model.layout
        assert layout is not None, "they are akin"
        inputs = batch.pad(self.works, layout, model) if self.padded else batch.stack(self.works, layout)
        found = model.run(self.graph, inputs, self.works[0].outputs)
        answers = batch.split(found, self.works, layout, model)
        self.graph.cost.learn(self._size, model.clock() - spent)
        taken = time.perf_counter_ns() - start
        for work in self.works:
            work.computed, work.run_rows, work.leads = taken, self.rows, work is self.works[0]
        return answers


def _alone(work: Work) -> Arrays | Exception:
    try:
        return work.run()
    except Exception as error:
        return error
