"""A bound on a ratio."""

from dataclasses import dataclass
from typing import Any

from benchmarks.report.spread import Spread

REPEATS = 5  # a verdict from fewer repeats is marked


@dataclass(frozen=True)
class Gate:
    """``ratio``, measured in ``cell``, must be at least ``bound``, or with ``at_most`` at most ``bound``."""

    description: str
    cell: object  # shown by its str
    ratio: Spread
    bound: float
    at_most: bool = False

    @property
    def verdict(self) -> str:
        met = self.ratio.median <= self.bound if self.at_most else self.ratio.median >= self.bound
        few = f", of {self.ratio.count}" if self.ratio.count < REPEATS else ""
        return ("met" if met else "**not met**") + few

    def row(self) -> list[Any]:
        """The cells of a table: description, cell, ratio, bound, verdict."""
        return [self.description, self.cell, self.ratio, f"{'≤' if self.at_most else '≥'} {self.bound:g}", self.verdict]
