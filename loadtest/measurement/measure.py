"""One turn: a warm-up until the server is in a steady state, then the measurement."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from loadtest.generator.load import Sample, Turn
from loadtest.generator.pool import WorkerPool
from loadtest.measurement import stages
from loadtest.measurement.window import disagreement, join
from loadtest.requests.server import Server

WARMUP_WINDOWS = 3  # consecutive windows that must agree before the measurement begins
MEASURED_WINDOWS = 5
SOAK_WINDOWS = 20
MAX_SAMPLE_S = 0.25


@dataclass(frozen=True)
class Timing:
    """Durations of a window of the warm-up, of the measurement in ``windows``, and of the longest warm-up."""

    window_s: float
    measured_s: float
    max_warmup_s: float
    windows: int = MEASURED_WINDOWS

    @property
    def sample_s(self) -> float:
        """Interval between samples of a process, at least four in each window."""
        return min(MAX_SAMPLE_S, self.window_s / 4, self.measured_s / self.windows / 4)


@dataclass(frozen=True)
class Measurement:
    """The result of a turn; ``unsteady_warmup`` and ``unsteady`` say why they did not reach a steady state."""

    windows: list[Sample]
    unsteady_warmup: str | None
    unsteady: str | None
    counters: stages.Counters | None  # the server's counts during the measurement
    processes: int

    @property
    def measured(self) -> list[Sample]:
        return [window for window in self.windows if window.phase == "measured"]

    @property
    def latencies_ms(self) -> np.ndarray:
        """The latencies of all measured requests, including late ones."""
        return np.concatenate([window.latencies_ms for window in self.windows if window.phase != "warm-up"])

    @property
    def rate(self) -> float:
        """Responses a second in the measurement."""
        return sum(window.answered for window in self.measured) / sum(window.seconds for window in self.measured)


def measure_turn(
    pool: WorkerPool, turn: Turn, server: Server, timing: Timing, show: Callable[[Sample], None]
) -> Measurement:
    """Run a turn. Every request of the measurement counts, none of the warm-up; ``show`` is called with each sample."""
    is_open = turn.rate is not None
    processes = pool.begin(turn)

    def collect(phase: str, seconds: float) -> list[Sample]:
        samples = []
        for sample in pool.samples(seconds):
            show(sample)
            samples += [sample] if sample.phase == phase else []
        return samples

    windows: list[Sample] = []
    unsteady_warmup: str | None = "no window"
    while unsteady_warmup and len(windows) * timing.window_s < timing.max_warmup_s:
        windows.append(join(collect("warm-up", timing.window_s), processes))
        enough = len(windows) >= WARMUP_WINDOWS
        unsteady_warmup = disagreement(windows[-WARMUP_WINDOWS:], is_open) if enough else "too few windows"
    with ThreadPoolExecutor(1) as executor:  # a slow response to a scrape must not delay the load
        pool.measure()
        before = executor.submit(stages.scrape, server)
        measured = [collect("measured", timing.measured_s / timing.windows) for _ in range(timing.windows)]
        after = executor.submit(stages.scrape, server)
        late: list[Sample] = []
        for sample in pool.finish():
            show(sample)
            (measured[-1] if sample.phase == "measured" else late).append(sample)
        counters = stages.between(before.result(), after.result())
    windows += [join(samples, processes) for samples in measured]
    unsteady = disagreement(windows[-timing.windows :], is_open)
    return Measurement([*windows, join(late, processes)], unsteady_warmup, unsteady, counters, processes)
