"""What a model version has done: how often, on how many rows, and the nanoseconds of each stage."""

import threading
import time
from dataclasses import dataclass, field

STAGES = ("queue", "decode", "compute", "encode")  # of Server-Timing
MOST_BATCH_SIZES = 1024  # told apart; a client chooses how many there are


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


def _stages() -> dict[str, Tally]:
    return {stage: Tally() for stage in STAGES}


@dataclass
class Snapshot:
    """The counters at one moment."""

    last_inference: int = 0  # milliseconds since 1970
    inferences: int = 0  # rows: a batch of 64 counts 64
    executions: int = 0
    success: Tally = field(default_factory=Tally)
    fail: Tally = field(default_factory=Tally)
    stages: dict[str, Tally] = field(default_factory=_stages)
    batches: dict[int, dict[str, Tally]] = field(default_factory=dict)


class Statistics:
    """Counters that every thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = Snapshot()

    def succeeded(self, rows: int, ns: int, stages: dict[str, int]) -> None:
        """A request was answered: its rows, its nanoseconds in all, and those of each stage."""
        with self._lock:
            now = self._now
            now.last_inference = time.time_ns() // 1_000_000
            now.inferences += rows
            now.executions += 1
            now.success.add(ns)
            if rows not in now.batches and len(now.batches) < MOST_BATCH_SIZES:
                now.batches[rows] = _stages()
            of_batch = now.batches.get(rows)
            for stage in STAGES:
                now.stages[stage].add(stages[stage])
                if of_batch:
                    of_batch[stage].add(stages[stage])

    def failed(self, ns: int) -> None:
        """A request was refused, or the model failed it, after so many nanoseconds."""
        with self._lock:
            self._now.fail.add(ns)

    def snapshot(self) -> Snapshot:
        """A copy that does not change any more."""
        with self._lock:
            now = self._now
            return Snapshot(
                now.last_inference,
                now.inferences,
                now.executions,
                now.success.copy(),
                now.fail.copy(),
                {stage: tally.copy() for stage, tally in now.stages.items()},
                {
                    rows: {stage: tally.copy() for stage, tally in of.items()}
                    for rows, of in sorted(now.batches.items())
                },
            )
