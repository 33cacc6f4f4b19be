"""What a process has done since its start, in plain numbers and lists: every request pays for the counting.

``/metrics`` (service/metrics.py) and V2's statistics (service/telemetry/statistics.py) show the same numbers.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from service.base.timing import STAGES, Timing

Version = tuple[str, int]  # of a model: its name, and which one
NO_MODEL: Version = ("(none)", 0)  # of requests to models that are not served: clients must not create time series
REASONS = (
    *("max_queue", "deadline", "max_memory_bytes", "max_body_bytes", "memory_budget_bytes", "max_run_seconds"),
    *("max_header_bytes", "read_timeout_seconds", "write_timeout_seconds", "memory", "device_memory", "device_lost"),
    *("not_ready", "memories_bytes"),
)
# Powers of two, in nanoseconds, that are the first and the last bound of histograms: 16 microseconds and 17 seconds.
SHORTEST_BIT, LONGEST_BIT = 14, 34
BOUNDS = [1 << power for power in range(SHORTEST_BIT, LONGEST_BIT + 1)]
# Of whole requests, so that a quantile between two bounds is known to a tenth: four from each power of two to the next.
STEPS = 4
FINE_BOUNDS = [*(bound * (STEPS + step) // STEPS for bound in BOUNDS[:-1] for step in range(STEPS)), BOUNDS[-1]]
MAX_BATCH_SIZES = 128  # counted for each version, as clients choose how many there are
OTHER_BATCH_SIZES = -1  # stands for all further ones

# The count of times between each bound and the one before it, the count of longer times, and the sum in nanoseconds.
Histogram = list[int]


@dataclass(slots=True)
class Answered:
    """The successful requests to a version through one API."""

    # For each stage, and for the whole request: counts by the bits of its nanoseconds, and the sum of nanoseconds. For
    # the whole request by ``STEPS`` times the bits, plus the number of the step among the numbers that have so many.
    bits: list[list[int]] = field(default_factory=lambda: [*([0] * 64 for _ in STAGES), [0] * 64 * STEPS])
    sums: list[int] = field(default_factory=lambda: [0] * (len(STAGES) + 1))
    rows: int = 0  # a batch of 64 rows counts 64
    last: int = 0  # time of the last one, in nanoseconds since 1970


def histograms(answered: Answered) -> Sequence[Histogram]:
    """The histogram of each stage, and of whole requests."""
    *stages, total = zip(answered.bits, answered.sums, strict=True)
    return [*(histogram_of(*stage) for stage in stages), histogram_of(*total, steps=STEPS)]


def histogram_of(bits: Sequence[int], taken: int, steps: int = 1) -> Histogram:
    """The histogram of times that were counted in ``steps`` for each number of bits, with their sum ``taken``."""
    first, end = steps * (SHORTEST_BIT + 1), steps * (LONGEST_BIT + 1)
    return [sum(bits[:first]), *bits[first:end], sum(bits[end:]), taken]


@dataclass
class RequestCounters:
    """Counts of requests, made on the event loop, and of runs, made by the engine under its lock."""

    answered: defaultdict[tuple[Version, str], Answered] = field(default_factory=lambda: defaultdict(Answered))
    failed: Counter[tuple[Version, str, int]] = field(default_factory=Counter)  # by version, API and status
    failed_ns: Counter[Version] = field(default_factory=Counter)
    # Version -> rows of a run -> nanoseconds in each stage, of one request of each such run, and the count of runs.
    batches: defaultdict[Version, dict[int, list[int]]] = field(default_factory=lambda: defaultdict(dict))
    in_flight: int = 0  # inference requests in progress
    inline_runs: int = 0  # runs on the event loop
    runs: Counter[int] = field(default_factory=Counter)  # in threads, by the number of tasks in one
    refused: Counter[str] = field(default_factory=Counter)  # rejected requests, by limit
    cancelled: int = 0  # tasks removed from the queue because their client has gone

    def observe(self, version: Version, api: str, timing: Timing, rows: int = 1, run_rows: int | None = None) -> None:
        """Count a successful request of ``rows``.

        ``run_rows`` are the rows of its run, for one of the requests that shared it; None for the others.
        """
        answered = self.answered[version, api]
        decode, queue, compute, encode, total = answered.bits
        sums = answered.sums
        decoded, queued, computed, encoded = spent = timing.spent_ns.values()
        taken = timing.total_ns
        decode[decoded.bit_length()] += 1
        queue[queued.bit_length()] += 1
        compute[computed.bit_length()] += 1
        encode[encoded.bit_length()] += 1
        length = taken.bit_length()
        total[STEPS * length + (taken >> max(0, length - 3) & 3)] += 1
        sums[0] += decoded
        sums[1] += queued
        sums[2] += computed
        sums[3] += encoded
        sums[4] += taken
        answered.rows += rows
        answered.last = time.time_ns()
        if run_rows is not None:
            self._observe_run(version, run_rows, spent)

    def observe_failure(self, version: Version, api: str, status: int, limit: str = "", taken: int = 0) -> None:
        """Count a request that failed with ``status`` after ``taken`` nanoseconds, or was rejected by ``limit``."""
        self.failed[version, api, status] += 1
        self.failed_ns[version] += taken
        if limit:
            self.refused[limit] += 1

    def _observe_run(self, version: Version, rows: int, spent: Iterable[int]) -> None:
        batches = self.batches[version]
        known = batches.get(rows)
        if known is None:
            rows = rows if len(batches) < MAX_BATCH_SIZES else OTHER_BATCH_SIZES
            known = batches.setdefault(rows, [0] * (len(STAGES) + 1))
        decoded, queued, computed, encoded = spent
        known[0] += decoded
        known[1] += queued
        known[2] += computed
        known[3] += encoded
        known[4] += 1
