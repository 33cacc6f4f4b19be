"""The time a request spends in each of its stages, for ``Server-Timing``, metrics and statistics."""

import time

STAGES = ("decode", "queue", "compute", "encode")
NO_TIMES = dict.fromkeys(STAGES, 0)


class Timing:
    """The stopwatch of one request, in nanoseconds: its total time, and the time of each stage.

    ``started_ns`` is when the request came, by ``time.perf_counter_ns``; None = now.
    """

    __slots__ = ("_lap", "spent_ns", "started_ns")

    def __init__(self, started_ns: int | None = None) -> None:
        self._lap = time.perf_counter_ns()
        self.started_ns = self._lap if started_ns is None else started_ns
        self.spent_ns = NO_TIMES.copy()

    def start(self) -> None:
        """Start a lap. The time since the last one (waiting for the body, say) is counted for no stage."""
        self._lap = time.perf_counter_ns()

    def lap(self, stage: str) -> None:
        """Count the time since the last lap for ``stage``."""
        now = time.perf_counter_ns()
        self.spent_ns[stage] += now - self._lap
        self._lap = now

    def record_run(self, queue_ns: int, compute_ns: int) -> None:
        """Count these times, measured by the engine, for the stages queue and compute, and start a lap."""
        self.spent_ns["queue"] = queue_ns
        self.spent_ns["compute"] = compute_ns
        self._lap = time.perf_counter_ns()

    @property
    def total_ns(self) -> int:
        """Nanoseconds since the request began."""
        return time.perf_counter_ns() - self.started_ns

    def header(self) -> bytes:
        """The value of the header ``Server-Timing``; its durations are in milliseconds."""
        spent_ns = self.spent_ns
        return b"decode;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, encode;dur=%.3f" % (
            spent_ns["decode"] / 1e6,
            spent_ns["queue"] / 1e6,
            spent_ns["compute"] / 1e6,
            spent_ns["encode"] / 1e6,
        )
