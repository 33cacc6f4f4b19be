"""What generation has done since the start of this process, as ``Metrics`` publishes it."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from service.telemetry.counters import FINE_BOUNDS, Histogram
from service.telemetry.families import BATCH_SIZES
from service.telemetry.shared_metrics import Key


def _empty(bounds: Sequence[int]) -> Histogram:
    return [0] * (len(bounds) + 2)


def _observe(histogram: Histogram, bounds: Sequence[int], value: int) -> None:
    histogram[bisect_left(bounds, value)] += 1
    histogram[-1] += value


class GenerationCounters:
    """Tokens and times by the name of the model, and how many sequences shared a step."""

    def __init__(self) -> None:
        self._prompts, self._tokens = Counter[str](), Counter[str]()
        self._first, self._next = (defaultdict[str, Histogram](lambda: _empty(FINE_BOUNDS)) for _ in range(2))
        self._shared = _empty(BATCH_SIZES)

    def observe_prompt(self, model: str, tokens: int) -> None:
        """Count the tokens of a prompt."""
        self._prompts[model] += tokens

    def observe_token(self, model: str, nanoseconds: int, is_first: bool) -> None:
        """Count a token, and the time since the one before, or since the arrival of the request."""
        self._tokens[model] += 1
        _observe((self._first if is_first else self._next)[model], FINE_BOUNDS, nanoseconds)

    def observe_step(self, sequences: int) -> None:
        """Count a run of so many sequences."""
        _observe(self._shared, BATCH_SIZES, sequences)

    def counted(self) -> Iterable[tuple[Key, list[int]]]:
        """The numbers of all families."""
        for name, counts in (("heed_prompt_tokens", self._prompts), ("heed_generated_tokens", self._tokens)):
            for model, count in counts.items():
                yield (name, model), [count]
        for name, times in (
            ("heed_time_to_first_token_seconds", self._first),
            ("heed_time_per_output_token_seconds", self._next),
        ):
            for model, histogram in times.items():
                yield (name, model), histogram
        yield ("heed_generation_batch_size",), self._shared
