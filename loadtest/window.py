"""Stretches of a turn, and when they agree."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.load import Tick

WITHIN = 0.1  # windows agree when each is this near to the mean of all


@dataclass(frozen=True)
class Window:
    """What all processes saw in some ``seconds``. Latencies are milliseconds; ``cores`` of one process."""

    phase: str
    seconds: float
    arrived: int
    answered: int
    latencies: np.ndarray
    kinds: np.ndarray
    errors: Counter[str]
    cores: float
    lags: np.ndarray  # milliseconds
    waiting: int

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answered / self.seconds if self.seconds else 0.0

    def percentile(self, percent: float) -> float | None:
        """Milliseconds."""
        return float(np.percentile(self.latencies, percent)) if len(self.latencies) else None


def window(ticks: Sequence[Tick], processes: int) -> Window:
    """What ``ticks`` of so many processes, about as many of each, say together."""
    seconds = sum(tick.seconds for tick in ticks) / processes
    errors: Counter[str] = Counter()
    for tick in ticks:
        errors.update(tick.errors)
    return Window(
        ticks[-1].phase if ticks else "",
        seconds,
        sum(tick.arrived for tick in ticks),
        sum(tick.answered for tick in ticks),
        1e3 * np.concatenate([np.empty(0, np.float32), *(tick.latencies for tick in ticks)]),
        np.concatenate([np.empty(0, np.uint16), *(tick.kinds for tick in ticks)]),
        errors,
        sum(tick.cpu for tick in ticks) / (seconds * processes) if seconds else 0.0,
        1e3 * np.concatenate([np.empty(0, np.float32), *(tick.lags for tick in ticks)]),
        sum(tick.waiting for tick in ticks[-processes:]),
    )


def disagreement(windows: Sequence[Window], is_open: bool) -> str | None:
    """Why these windows are not of a steady state; None if they are.

    A closed loop must keep its rate; an open one must be answered as fast as it asks, for the rate of strangers wavers.
    Both must keep their median.
    """
    medians = [float(np.median(of.latencies)) for of in windows if len(of.latencies)]
    if not windows or len(medians) < len(windows):
        return "a window without an answer"
    rates = [of.answered / max(1, of.arrived) if is_open else of.rate for of in windows]
    for what, numbers, unit in (("answered of asked" if is_open else "rate", rates, ""), ("median", medians, " ms")):
        mean = sum(numbers) / len(numbers)
        if any(abs(number - mean) > WITHIN * mean for number in numbers):
            return f"{what} from {min(numbers):.4g} to {max(numbers):.4g}{unit}"
    if is_open and np.mean(rates) < 1 - WITHIN:
        return f"answers only {np.mean(rates):.0%} of what is asked"
    return None
