"""What a model version has done: how often, on how many rows, and the nanoseconds of each stage."""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STAGES = ("queue", "decode", "compute", "encode")  # of Server-Timing
MOST_BATCH_SIZES = 1024  # told apart; a client chooses how many there are
OTHERS = -1  # rows of those that are not


@dataclass
class Tally:
    """How often, and for how many nanoseconds in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def copy(self) -> "Tally":
        return Tally(self.count, self.ns)


@dataclass
class Snapshot:
    """The counters at one moment."""

    last_inference: int  # milliseconds since 1970
    inferences: int  # rows: a batch of 64 counts 64
    executions: int
    success: Tally
    fail: Tally
    stages: dict[str, Tally]
    batches: dict[int, dict[str, Tally]]


class Statistics:
    """Counters that every thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0  # nanoseconds since 1970
        self._inferences = 0
        self._fail = Tally()
        self._of: dict[int, list[int]] = {}  # rows -> requests, their nanoseconds in all and in each stage

    def succeeded(self, rows: int, ns: int, stages: Mapping[str, int]) -> None:
        """A request was answered: its rows, its nanoseconds in all, and those of each stage."""
        with self._lock:
            self._last = time.time_ns()
            self._inferences += rows
            of = self._of.get(rows)
            if of is None:
                of = self._of.setdefault(rows if len(self._of) < MOST_BATCH_SIZES else OTHERS, [0] * (2 + len(STAGES)))
            of[0] += 1
            of[1] += ns
            of[2] += stages["queue"]
            of[3] += stages["decode"]
            of[4] += stages["compute"]
            of[5] += stages["encode"]

    def failed(self, ns: int) -> None:
        """A request was refused, or the model failed it, after so many nanoseconds."""
        with self._lock:
            self._fail.add(ns)

    def snapshot(self) -> Snapshot:
        """A copy that does not change any more."""
        with self._lock:
            of = {rows: tuple(counts) for rows, counts in self._of.items()}
            last, inferences, fail = self._last // 1_000_000, self._inferences, self._fail.copy()
        count, ns, *stages = (sum(column) for column in zip(*of.values(), strict=True)) if of else (0,) * 6
        batches = {rows: _tallies(of[rows][0], of[rows][2:]) for rows in sorted(of) if rows != OTHERS}
        return Snapshot(last, inferences, count, Tally(count, ns), fail, _tallies(count, stages), batches)


def _tallies(count: int, stages: Iterable[int]) -> dict[str, Tally]:
    return {stage: Tally(count, ns) for stage, ns in zip(STAGES, stages, strict=True)}
