"""The plots of the report, as reproducible PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.figure import Figure

from benchmarks.gpu.gates import times
from benchmarks.gpu.rows import Rows
from benchmarks.report.gate import Gate
from benchmarks.report.plots import STYLE, WIDTH, bars, save
from benchmarks.report.spread import spread_of

COLUMNS = 3
LINES = {"heed": "tab:blue", "provider": "tab:blue", "cpu": "grey"}
Lines = Mapping[str, Sequence[tuple[float, float]]]


def draw(rows: Rows, judged: Sequence[Gate], file: Path) -> list[Path]:
    """Write the plots that have data beside ``file``; return their paths."""
    with pyplot.rc_context(STYLE):
        figures = {"gates": bars(judged), "engine": _panels(_engine(rows), "positions", "ms a call"),
                   "http": _panels(_http(rows), "positions", "requests a second")}  # fmt: skip
        return [save(figure, file.with_name(f"{file.stem}-{name}.png")) for name, figure in figures.items() if figure]


def _engine(rows: Rows) -> dict[str, Lines]:
    panels: dict[str, Any] = {}
    for row in sorted(rows.part("engine").values(), key=lambda row: row["n"]):
        panel = panels.setdefault(f"{row['path']}{', causal' * row['is_causal']}, {row['dtype']}", {})
        for name, times_ms in times(row).items():
            panel.setdefault(name, []).append((row["n"], spread_of(times_ms).median))
    return panels


def _http(rows: Rows) -> dict[str, Lines]:
    panels: dict[str, Any] = {}
    for row in sorted(rows.part("http").values(), key=lambda row: row["n"]):
        panel = panels.setdefault(f"{row['encoding']}, {row['path']}, batch {row['batch']}", {})
        for name in ("provider", "cpu"):
            panel.setdefault(name, []).append((row["n"], row[name]["rate"]))
    return panels


def _panels(panels: Mapping[str, Lines], x: str, y: str) -> Figure | None:
    if not panels:
        return None
    rows = -(-len(panels) // COLUMNS)
    figure, grid = pyplot.subplots(rows, COLUMNS, figsize=(WIDTH, 2.2 * rows), squeeze=False, layout="constrained")
    for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), "o-", label=name, color=LINES.get(name), markersize=3, linewidth=1)
        axes.set(title=title, xscale="log", yscale="log")
        axes.legend(fontsize=6)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel(x)
    figure.supylabel(y)
    return figure
