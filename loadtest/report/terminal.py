"""The progress display in the terminal, and the summary tables."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.generator.load import Sample
from loadtest.measurement.window import join

TIMES = ("p50", "p95", "p99", "p99.9", "max")
TOKEN_TIMES = ("p50", "p90", "p99")
DISPLAY_S = 1.0  # the displayed rate and percentiles are of the last second


class Display:
    """A progress bar over all turns with the current rate and latency; without a terminal, a line for each turn."""

    def __init__(self, console: Console, seconds: float) -> None:
        columns = TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn(), TextColumn("{task.fields[now]}")
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self.progress.add_task("", total=seconds, now="")
        self._title = ""
        self._processes = 1
        self._samples: deque[Sample] = deque()

    def begin_turn(self, title: str, processes: int) -> None:
        self._title, self._processes = title, processes
        self._samples.clear()

    def end_turn(self, rate: float) -> None:
        if self.progress.disable:
            self.progress.console.print(f"{self._title}: {format_number(rate)}/s", soft_wrap=True)

    def update(self, sample: Sample) -> None:
        """Show the values of the last second."""
        self._samples.append(sample)
        while sum(sample.seconds for sample in self._samples) > (DISPLAY_S + 0.1) * self._processes:
            self._samples.popleft()
        last = join([*self._samples], self._processes)
        p50, p99 = (format_number(last.percentile_ms(percent)) for percent in (50, 99))
        now = f"{last.rate:>8,.0f}/s  p50 {p50} ms  p99 {p99} ms"
        if len(last.gaps_ms):
            now += f"  {last.token_rate:,.0f} tokens/s"
        if errors := last.errors.total():
            now += f"  [red]{errors:,} errors[/]"
        done = sample.seconds / self._processes if sample.phase == "measured" else 0
        self.progress.update(self._task, advance=done, now=now, description=f"{self._title}, {sample.phase}")


def table(results: Sequence[dict[str, Any]], several: bool) -> Table:
    """A row for each level, with the server if there are ``several``; times are in milliseconds."""
    columns = [f"{time} ms" for time in TIMES]
    rows = _table("load", *(["server"] * several), "requests/s", *columns, "errors", "")
    for result in results:
        numbers = [format_number(result[metric]) for metric in ("rate", *TIMES)]
        errors = f"[red]{sum(result['errors'].values()):,}[/]" if result["errors"] else "0"
        verdict = "[green]steady[/]" if result["steady"] else "[yellow]unsteady[/]"
        rows.add_row(result["level"], *([result["server"]] * several), *numbers, errors, verdict)
    return rows


def token_table(results: Sequence[dict[str, Any]], several: bool) -> Table:
    """A row for each level at which tokens were generated; times are in milliseconds."""
    kinds = {"first_token": "first", "per_token": "each"}
    columns = [f"{name} {time} ms" for name in kinds.values() for time in TOKEN_TIMES]
    rows = _table("load", *(["server"] * several), "tokens/s", *columns)
    for result in results:
        if tokens := result["generation"]:
            numbers = [tokens["rate"], *(tokens[kind][time] for kind in kinds for time in TOKEN_TIMES)]
            rows.add_row(result["level"], *([result["server"]] * several), *map(format_number, numbers))
    return rows


def ratio_table(ratios: dict[str, Any]) -> Table:
    """A row for each level."""
    rows = _table("load", *next(iter(ratios.values())))
    for level, spreads in ratios.items():
        cells = [
            f"{spread['median']:.3g} ({spread['low']:.3g} to {spread['high']:.3g})" if spread["median"] else "-"
            for spread in spreads.values()
        ]
        rows.add_row(level, *cells)
    return rows


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in ("load", "server", "") else "right", no_wrap=True)
    return table


def format_number(number: float | None) -> str:
    """Three significant digits, or all digits of a whole number."""
    if number is None:
        return "-"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
