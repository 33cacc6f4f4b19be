"""What a process has done since its start, counted where it happens: plain numbers in lists, as every request pays."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect

from service.errors import HeedError
from service.timing import STAGES, Timing

NO_MODEL = "(none)"  # the label of requests that name no model served here: strangers make no series
HUNG_UP = 499  # as nginx calls it: the client went before its body was there
REASONS = (
    *("max_queue", "deadline", "max_memory_bytes", "max_body_bytes", "max_bodies_bytes", "not_ready"),
    *("max_header_bytes", "receive_seconds", "device_memory", "device_lost"),
)
LEAST, MOST = 14, 34  # the powers of two, in nanoseconds, that are bounds of histograms: 16 microseconds, 17 seconds
BOUNDS = [1 << power for power in range(LEAST, MOST + 1)]

# How many took less than each bound, but no less than the one before it; how many took longer; nanoseconds of all.
Histogram = list[int]


class Answered(dict[tuple[str, str], list[list[int]]]):
    """Model and face -> for each stage, and for all, how many took nanoseconds of so many bits; and the sums of all."""

    def __missing__(self, key: tuple[str, str]) -> list[list[int]]:
        self[key] = made = [[0] * 64 for _ in (*STAGES, "total", "sums")]
        return made


def histograms(answered: Sequence[Sequence[int]]) -> list[Histogram]:
    """Of each stage, and of all."""
    *stages, sums = answered
    return [
        [sum(bits[: LEAST + 1]), *bits[LEAST + 1 : MOST + 1], sum(bits[MOST + 1 :]), taken]
        for bits, taken in zip(stages, sums, strict=False)
    ]


@dataclass
class Counts:
    """Requests are counted on the event loop, runs by the engine under its lock."""

    answered: Answered = field(default_factory=Answered)
    failed: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # by model, face and status
    in_flight: int = 0  # requests to run a model that have begun and not ended
    here: int = 0  # runs on the event loop
    runs: Counter[int] = field(default_factory=Counter)  # in threads, by the works that shared one
    refused: Counter[str] = field(default_factory=Counter)  # by the limit that said no
    cancelled: int = 0  # dropped from the queue, because nobody waited for them any more

    def observe(self, model: str, face: str, timing: Timing) -> None:
        """A request to ``model`` was answered with what it asked for."""
        decode, queue, compute, encode, total, sums = self.answered[model, face]
        decoded, queued, computed, encoded = timing.spent.values()
        taken = time.perf_counter_ns() - timing.began
        decode[decoded.bit_length()] += 1
        queue[queued.bit_length()] += 1
        compute[computed.bit_length()] += 1
        encode[encoded.bit_length()] += 1
        total[taken.bit_length()] += 1
        sums[0] += decoded
        sums[1] += queued
        sums[2] += computed
        sums[3] += encoded
        sums[4] += taken

    def observe_failure(self, model: str, face: str, error: Exception) -> None:
        """A request was refused, or failed; the engine counts what it refuses itself."""
        if isinstance(error, HeedError):
            status = error.v2_status if face == "v2" else error.status
            if error.limit:
                self.refused[error.limit] += 1
        else:
            status = HUNG_UP if isinstance(error, ClientDisconnect) else 500
        self.failed[model, face, status] += 1
