"""The plots of the report, as reproducible PNG: the same numbers give the same file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.figure import Figure

from benchmarks.report.gate import Gate
from benchmarks.serving.cell import Cell
from benchmarks.serving.results import Results
from benchmarks.serving.workloads import SERIES, SIX

STYLE: Any = {
    "backend": "agg",
    "savefig.dpi": 120,
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
WIDTH = 8  # inches


def draw(results: Results, judged: Sequence[Gate], file: Path) -> list[Path]:
    """Write the plots that have data beside ``file``; return their paths."""
    with pyplot.rc_context(STYLE):
        return [
            _save(figure, file.with_name(f"{file.stem}-{name}.png"))
            for name, figure in (
                ("gates", _bars(judged)),
                ("throughput", _throughput(results)),
                ("growth", _growth(results)),
            )
            if figure is not None
        ]


def _throughput(results: Results) -> Figure | None:
    """A panel for each cell measured on Heed and another server: requests a second of each server."""
    cells = [cell for cell in results.cells if cell.ids == "none" and cell.workload in SIX]
    shared = [cell for cell in cells if len(names := _measured(results, cell)) > 1 and "heed" in names]
    if not shared:
        return None
    columns = 3
    lines = -(-len(shared) // columns)
    figure, grid = pyplot.subplots(lines, columns, figsize=(WIDTH, 1.5 * lines), squeeze=False, layout="constrained")
    for axes, cell in zip(grid.flat, shared, strict=False):
        servers = _measured(results, cell)[::-1]
        spreads = [rate for server in servers if (rate := results.spread(server, cell))]
        medians = [rate.median for rate in spreads]
        errors = [[rate.median - rate.low for rate in spreads], [rate.high - rate.median for rate in spreads]]
        colours = ["tab:blue" if server == "heed" else "lightgrey" for server in servers]
        axes.barh(servers, medians, xerr=errors, color=colours, error_kw={"linewidth": 0.8})
        axes.set_title(str(cell), fontsize=8)
    for axes in list(grid.flat)[len(shared) :]:
        axes.set_visible(False)
    figure.supxlabel("requests a second")
    return figure


def _growth(results: Results) -> Figure | None:
    """Requests a second, and the peak of memory, against the size of a series or the number of connections."""
    drawn = [(title, cells) for title, cells in curves(results) if len(cells) > 2]
    if not drawn:
        return None
    size = WIDTH, 2 * len(drawn)
    figure, grid = pyplot.subplots(len(drawn), 2, figsize=size, squeeze=False, layout="constrained")
    for (title, cells), line in zip(drawn, grid, strict=True):
        for axes, key, unit in zip(line, ("rps", "rss_peak_bytes"), (1, 2**20), strict=True):
            for server in results.servers:
                found = {x: one for x, cell in cells.items() if (one := results.spread(server, cell, key))}
                axes.plot(list(found), [one.median / unit for one in found.values()], ".-", label=server)
            axes.set(xscale="log", yscale="log", xlabel=title)
            axes.set_xticks(list(cells), list(cells), fontsize=6)
            axes.minorticks_off()
        line[0].set_ylabel("requests a second")
        line[1].set_ylabel("peak MiB")
    grid[0][0].legend()
    return figure


def curves(results: Results) -> Iterator[tuple[str, dict[int, Cell]]]:
    """The title of each curve, and its cells by their size."""
    for format in dict.fromkeys(cell.format for cell in results.cells):
        cells = [cell for cell in results.cells if cell.format == format and cell.ids == "none"]
        for series in SERIES.values():
            named = {one.name: size for size, one in series.workloads.items()}
            found = {named[cell.workload]: cell for cell in cells if cell.workload in named}
            yield f"{series.description}, {format}", dict(sorted(found.items()))
        for workload in SIX:
            counts = {cell.connections: cell for cell in cells if cell.workload == workload}
            yield f"{workload}, {format}: connections", dict(sorted(counts.items())) if len(counts) > 3 else {}


def _measured(results: Results, cell: Cell) -> list[str]:
    return [server for server in results.servers if (server, cell) in results.turns]


def _save(figure: Figure, path: Path) -> Path:
    """Write and close a figure; return ``path``."""
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
    return path


def _bars(judged: Sequence[Gate]) -> Figure | None:
    """Each gate's ratio / bound, inverted for an upper bound, so that every gate is met right of the line."""
    if not judged:
        return None
    figure, axes = pyplot.subplots(figsize=(WIDTH, 0.8 + 0.18 * len(judged)))
    for y, gate in enumerate(reversed(judged)):
        spread = [gate.bound / ratio if gate.at_most else ratio / gate.bound
                  for ratio in (gate.ratio.low, gate.ratio.median, gate.ratio.high)]  # fmt: skip
        colour = "tab:green" if spread[1] >= 1 else "tab:red"
        axes.plot([spread[0], spread[2]], [y, y], color=colour, linewidth=1)
        axes.plot(spread[1], y, "o", color=colour, markersize=4)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(judged)), [f"{gate.description}, {gate.cell}" for gate in reversed(judged)])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("ratio / bound: median, smallest to largest; met right of the line")
    return figure
