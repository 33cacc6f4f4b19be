"""How long a request spent in each of its stages, as ``Server-Timing`` and the statistics tell it."""

import time

STAGES = ("decode", "queue", "compute", "encode")


class Timing:
    """Nanoseconds of one request: since it began, and in each stage, from one lap to the next."""

    __slots__ = ("_lap", "began", "spent")

    def __init__(self) -> None:
        self.began = self._lap = time.perf_counter_ns()
        self.spent = dict.fromkeys(STAGES, 0)

    def start(self) -> None:
        """What was since the last lap (waiting for the body, say) belongs to no stage."""
        self._lap = time.perf_counter_ns()

    def lap(self, stage: str) -> None:
        """What was since the last lap belongs to ``stage``."""
        now = time.perf_counter_ns()
        self.spent[stage] += now - self._lap
        self._lap = now

    def lap_as(self, waited: int, computed: int) -> None:
        """What was since the last lap is known to be of these two stages."""
        self.spent["queue"] = waited
        self.spent["compute"] = computed
        self._lap = time.perf_counter_ns()

    @property
    def total(self) -> int:
        """Nanoseconds since it began."""
        return time.perf_counter_ns() - self.began

    def header(self) -> bytes:
        """The value of ``Server-Timing``; its durations are milliseconds."""
        spent = self.spent
        return b"decode;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, encode;dur=%.3f" % (
            spent["decode"] / 1e6,
            spent["queue"] / 1e6,
            spent["compute"] / 1e6,
            spent["encode"] / 1e6,
        )
