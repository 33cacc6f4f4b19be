"""What a model version has done: how often, on how many rows, and the nanoseconds of each stage."""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import add

STAGES = ("queue", "decode", "compute", "encode")  # of Server-Timing
MOST_BATCH_SIZES = 1024  # told apart; a client chooses how many there are
OTHERS = -1  # rows of those that are not
NOTHING = [0] * (len(STAGES) + 1)


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
        self._success = Tally()
        self._of_requests = [0] * len(STAGES)  # nanoseconds
        self._of_runs: dict[int, list[int]] = {}  # rows of a run -> nanoseconds in each stage, and how many runs

    def succeeded(self, rows: int, of_run: int | None, ns: int, stages: Mapping[str, int]) -> None:
        """A request was answered: its rows, its nanoseconds in all, and those of each stage.

        ``of_run`` are the rows of the run that answered it, for one of the requests that shared it; else None.
        """
        spent = stages["queue"], stages["decode"], stages["compute"], stages["encode"], 1
        with self._lock:
            self._last = time.time_ns()
            self._inferences += rows
            self._success.add(ns)
            self._of_requests = list(map(add, self._of_requests, spent))
            if of_run is not None:
                known = self._of_runs.get(of_run)
                if known is None:
                    of_run = of_run if len(self._of_runs) < MOST_BATCH_SIZES else OTHERS
                    known = self._of_runs.get(of_run, NOTHING)
                self._of_runs[of_run] = list(map(add, known, spent))

    def failed(self, ns: int) -> None:
        """A request was refused, or the model failed it, after so many nanoseconds."""
        with self._lock:
            self._fail.add(ns)

    def snapshot(self) -> Snapshot:
        """A copy that does not change any more."""
        with self._lock:
            runs = dict(self._of_runs)
            success, stages = self._success.copy(), self._of_requests
            return Snapshot(
                self._last // 1_000_000,
                self._inferences,
                sum(of[-1] for of in runs.values()),
                success,
                self._fail.copy(),
                _tallies(success.count, stages),
                {rows: _tallies(runs[rows][-1], runs[rows][:-1]) for rows in sorted(runs) if rows != OTHERS},
            )


def _tallies(count: int, stages: Iterable[int]) -> dict[str, Tally]:
    return {stage: Tally(count, ns) for stage, ns in zip(STAGES, stages, strict=True)}
