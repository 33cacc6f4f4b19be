"""What a process has done since its start, counted where it happens: plain numbers in lists, as every request pays."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect

from service.errors import HeedError
from service.timing import STAGES, Timing

NO_MODEL = "(none)"  # the label of requests that name no model served here: strangers make no series
HUNG_UP = 499  # as nginx calls it: the client went before its body was there
REASONS = ("max_queue", "deadline", "max_memory_bytes", "max_body_bytes", "not_ready")
BOUNDS = [int(step * 10**power) for power in range(4, 10) for step in (1, 2.5, 5)] + [10**10]  # nanoseconds
NEW = [0] * (len(BOUNDS) + 2)

Histogram = list[int]  # how many took up to each bound, how many took longer, and the nanoseconds of all


class Histograms(dict[tuple[str, str], list[Histogram]]):
    """Model and face -> a histogram of each stage, and of all, of the requests that were answered."""

    def __missing__(self, key: tuple[str, str]) -> list[Histogram]:
        self[key] = made = [NEW.copy() for _ in (*STAGES, "total")]
        return made


@dataclass
class Counts:
    """Requests are counted on the event loop, runs by the engine under its lock."""

    answered: Histograms = field(default_factory=Histograms)
    failed: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # by model, face and status
    in_flight: int = 0  # requests to run a model that have begun and not ended
    here: int = 0  # runs on the event loop
    runs: Counter[int] = field(default_factory=Counter)  # in threads, by the works that shared one
    refused: Counter[str] = field(default_factory=Counter)  # by the limit that said no
    cancelled: int = 0  # dropped from the queue, because nobody waited for them any more

    def observe(self, model: str, face: str, timing: Timing) -> None:
        """A request to ``model`` was answered with what it asked for."""
        decode, queue, compute, encode, total = self.answered[model, face]
        decoded, queued, computed, encoded = timing.spent.values()
        decode[bisect_left(BOUNDS, decoded)] += 1
        decode[-1] += decoded
        queue[bisect_left(BOUNDS, queued)] += 1
        queue[-1] += queued
        compute[bisect_left(BOUNDS, computed)] += 1
        compute[-1] += computed
        encode[bisect_left(BOUNDS, encoded)] += 1
        encode[-1] += encoded
        taken = timing.total
        total[bisect_left(BOUNDS, taken)] += 1
        total[-1] += taken

    def observe_failure(self, model: str, face: str, error: Exception) -> None:
        """A request was refused, or failed; the engine counts what it refuses itself."""
        if isinstance(error, HeedError):
            status = error.v2_status if face == "v2" else error.status
            if error.limit:
                self.refused[error.limit] += 1
        else:
            status = HUNG_UP if isinstance(error, ClientDisconnect) else 500
        self.failed[model, face, status] += 1
