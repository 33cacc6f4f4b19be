"""What is seen while it runs, and the summary after it."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.load import Tick

TIMES = ("p50", "p95", "p99", "p99.9", "max")
LOOKED_BACK = 1.0  # seconds that the rate and tail shown are of


class Live:
    """A bar over all turns, with the rate and the tail of the last second; where no terminal is, a line a turn."""

    def __init__(self, console: Console, seconds: float) -> None:
        columns = TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn(), TextColumn("{task.fields[now]}")
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self.progress.add_task("", total=seconds, now="")
        self._title = ""
        self._processes = 1
        self._ticks: deque[Tick] = deque()

    def turn(self, title: str, processes: int) -> None:
        """Another begins."""
        self._title, self._processes = title, processes
        self._ticks.clear()

    def over(self, rate: float) -> None:
        """The turn ended."""
        if self.progress.disable:
            self.progress.console.print(f"{self._title}: {short(rate)}/s", soft_wrap=True)

    def show(self, tick: Tick) -> None:
        self._ticks.append(tick)
        while sum(each.seconds for each in self._ticks) > (LOOKED_BACK + 0.1) * self._processes:
            self._ticks.popleft()
        seconds = sum(each.seconds for each in self._ticks) / self._processes
        latencies = 1e3 * np.concatenate([each.latencies for each in self._ticks] or [np.empty(0)])
        now = f"{sum(each.answered for each in self._ticks) / seconds:>8,.0f}/s" if seconds else ""
        if len(latencies):
            p50, p99 = np.percentile(latencies, (50, 99))
            now += f"  p50 {short(p50)} ms  p99 {short(p99)} ms"
        if errors := sum(sum(each.errors.values()) for each in self._ticks):
            now += f"  [red]{errors:,} errors[/]"
        done = tick.seconds / self._processes if tick.phase == "measured" else 0
        self.progress.update(self._task, advance=done, now=now, description=f"{self._title}, {tick.phase}")


def table(results: Sequence[dict[str, Any]], several: bool) -> Table:
    """A row for each level, and server if there are several; times are milliseconds."""
    found = _table("load", *(["server"] * several), "rate/s", *TIMES, "errors", "")
    for result in results:
        times = [short(result[of]) for of in TIMES]
        errors = f"[red]{sum(result['errors'].values()):,}[/]" if result["errors"] else "0"
        verdict = "[green]steady[/]" if result["steady"] else "[yellow]unsteady[/]"
        found.add_row(result["level"], *([result["server"]] * several), short(result["rate"]), *times, errors, verdict)
    return found


def ratio_table(ratios: dict[str, Any]) -> Table:
    """A row for each level."""
    found = _table("load", *next(iter(ratios.values())))
    for level, of in ratios.items():
        spreads = [
            f"{spread['median']:.3g} ({spread['low']:.3g} to {spread['high']:.3g})" if spread["median"] else "-"
            for spread in of.values()
        ]
        found.add_row(level, *spreads)
    return found


def _table(*columns: str) -> Table:
    found = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        found.add_column(name, justify="left" if name in ("load", "server", "") else "right", no_wrap=True)
    return found


def short(number: float | None) -> str:
    """Three digits, or all before the point."""
    if number is None:
        return "-"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
