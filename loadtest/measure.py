"""One turn: load on one server until it is steady, and from then on the measurement."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from loadtest import stages
from loadtest.crew import Crew
from loadtest.load import Tick, Turn
from loadtest.server import Server
from loadtest.window import Window, disagreement, window

WARM = 3  # windows that must agree before anything is measured
MEASURED = 5  # windows of a measurement
TICK = 0.25  # seconds

Show = Callable[[Tick], None]


@dataclass(frozen=True)
class Timing:
    """Seconds: of a warm-up's window, of the measurement, and until a warm-up that does not become steady is ended."""

    window: float
    measured: float
    patience: float

    @property
    def tick(self) -> float:
        """Seconds between two looks at a process: some to each window."""
        return min(TICK, self.window / 4, self.measured / MEASURED / 4)


@dataclass(frozen=True)
class Taken:
    """What a turn gave. ``warmed`` and ``steady``: why the warm-up, and the measurement, are of no steady state."""

    windows: list[Window]
    warmed: str | None
    steady: str | None
    counts: stages.Counts | None  # of the server, while it was measured
    processes: int

    @property
    def measured(self) -> list[Window]:
        return [of for of in self.windows if of.phase == "measured"]

    @property
    def rate(self) -> float:
        """Answers a second of the measurement."""
        return sum(of.answered for of in self.measured) / sum(of.seconds for of in self.measured)


def take(crew: Crew, turn: Turn, server: Server, timing: Timing, show: Show) -> Taken:
    """Every request of the measurement counts, none of the warm-up."""
    is_open = turn.rate is not None
    processes = crew.begin(turn)

    def stretch(phase: str, seconds: float) -> list[Tick]:
        ticks = []
        for tick in crew.ticks(seconds):
            show(tick)
            ticks += [tick] if tick.phase == phase else []
        return ticks

    windows: list[Window] = []
    warmed: str | None = "no window"
    while warmed and len(windows) * timing.window < timing.patience:
        windows.append(window(stretch("warm-up", timing.window), processes))
        warmed = disagreement(windows[-WARM:], is_open) if len(windows) >= WARM else "too few windows"
    with ThreadPoolExecutor(1) as beside:  # a server that stands still does not hold up the load
        crew.measure()
        before = beside.submit(stages.scrape, server)
        several = [stretch("measured", timing.measured / MEASURED) for _ in range(MEASURED)]
        after = beside.submit(stages.scrape, server)
        late: list[Tick] = []
        for tick in crew.finish():
            show(tick)
            (several[-1] if tick.phase == "measured" else late).append(tick)
        counts = stages.between(before.result(), after.result())
    windows += [window(ticks, processes) for ticks in several]
    steady = disagreement(windows[-MEASURED:], is_open)
    return Taken([*windows, window(late, processes)], warmed, steady, counts, processes)
