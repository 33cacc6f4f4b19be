"""The spread of repeated measurements."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """The median, smallest and largest of ``count`` repeats."""

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)} to {_short(self.high)})"


def spread_of(numbers: Iterable[float]) -> Spread | None:
    """The spread of ``numbers``; None if there are none."""
    repeats = list(numbers)
    return Spread(median(repeats), min(repeats), max(repeats), len(repeats)) if repeats else None


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
