"""Works that wait: the most urgent first, of equally urgent ones the one that came first."""

from collections.abc import Collection, Hashable
from math import inf

from service.work import Work

Works = dict[Work, None]  # in the order they came


class Queue:
    """Not safe for threads by itself: whoever uses one holds a lock."""

    def __init__(self) -> None:
        self._ranks: dict[int, Works] = {}
        self._mates: dict[tuple[int, Hashable], Works] = {}  # by rank and what they have to have in common
        self._forecasts: dict[int, float] = {}  # nanoseconds that those of a rank will take, about

    def __len__(self) -> int:
        return sum(map(len, self._ranks.values()))

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def put(self, work: Work) -> None:
        self._ranks.setdefault(work.rank, {})[work] = None
        for mates in (work.alike, work.akin):
            if mates is not None:
                self._mates.setdefault((work.rank, mates), {})[work] = None
        self._forecasts[work.rank] = self._forecasts.get(work.rank, 0) + _known(work)

    def drop(self, work: Work) -> bool:
        """Take it out; False where it is not in the queue."""
        same = self._ranks.get(work.rank, {})
        if work not in same:
            return False
        del same[work]
        self._forecasts[work.rank] -= _known(work)
        if not same:
            del self._ranks[work.rank], self._forecasts[work.rank]
        for mates in (work.alike, work.akin):
            if mates is not None:
                of = self._mates[work.rank, mates]
                del of[work]
                if not of:
                    del self._mates[work.rank, mates]
        return True

    def forecast(self, rank: float = inf) -> float:
        """Nanoseconds that those of this rank, and those before it, will take; what never ran counts as none."""
        return sum(of for own, of in self._forecasts.items() if own <= rank)

    def first(self) -> Work:
        """Raises ValueError where nothing waits."""
        return next(iter(self._ranks[min(self._ranks)]))

    def mates(self, work: Work, common: Hashable) -> Collection[Work]:
        """All that are as urgent as ``work`` and have this in common; none where that is None."""
        return self._mates.get((work.rank, common), {}) if common is not None else ()

    def clear(self) -> list[Work]:
        """Take out, and answer, all."""
        works = [work for same in self._ranks.values() for work in same]
        for work in works:
            self.drop(work)
        return works


def _known(work: Work) -> float:
    return work.forecast if work.is_known else 0.0
