"""The report's plots, as SVG that is the same for the same numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.figure import Figure

from benchmarks.serving.cell import Cell
from benchmarks.serving.gates import Gate
from benchmarks.serving.results import Results

STYLE: Any = {
    "backend": "svg",
    "svg.hashsalt": "heed",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
WIDTH = 8  # inches


def draw(results: Results, judged: Sequence[Gate], file: Path) -> list[Path]:
    """Write the plots beside ``file``; answers their paths, of those there is something to show in."""
    with pyplot.rc_context(STYLE):
        return [
            save(figure, file.with_name(f"{file.stem}-{name}.svg"))
            for name, figure in (("gates", bars(judged)), ("throughput", _throughput(results)))
            if figure is not None
        ]


def save(figure: Figure, path: Path) -> Path:
    """Write and close a figure; answers ``path``."""
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)
    return path


def bars(judged: Sequence[Gate]) -> Figure | None:
    """Each gate's ratio over its bound: right of the line is met, for the one where less is better turned round."""
    if not judged:
        return None
    figure, axes = pyplot.subplots(figsize=(WIDTH, 0.8 + 0.18 * len(judged)))
    for y, gate in enumerate(reversed(judged)):
        spread = [gate.bound / each if gate.at_most else each / gate.bound
                  for each in (gate.ratio.low, gate.ratio.median, gate.ratio.high)]  # fmt: skip
        colour = "tab:green" if spread[1] >= 1 else "tab:red"
        axes.plot([spread[0], spread[2]], [y, y], color=colour, linewidth=1)
        axes.plot(spread[1], y, "o", color=colour, markersize=4)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(judged)), [f"{gate.what}, {gate.cell}" for gate in reversed(judged)])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("ratio over what it must be: median, smallest to largest; right of the line is met")
    return figure


def _throughput(results: Results) -> Figure | None:
    """A panel for each cell that Heed shares with others: requests a second of each."""
    shared = [
        cell for cell in results.cells
        if cell.ids == "none" and len(_who(results, cell)) > 1 and "heed" in _who(results, cell)
    ]  # fmt: skip
    if not shared:
        return None
    columns = 3
    lines = -(-len(shared) // columns)
    figure, grid = pyplot.subplots(lines, columns, figsize=(WIDTH, 1.5 * lines), squeeze=False, layout="constrained")
    for axes, cell in zip(grid.flat, shared, strict=False):
        who = _who(results, cell)[::-1]
        spreads = [found for server in who if (found := results.spread(server, cell))]
        medians = [of.median for of in spreads]
        errors = [[of.median - of.low for of in spreads], [of.high - of.median for of in spreads]]
        colours = ["tab:blue" if server == "heed" else "lightgrey" for server in who]
        axes.barh(who, medians, xerr=errors, color=colours, error_kw={"linewidth": 0.8})
        axes.set_title(str(cell), fontsize=8)
    for axes in list(grid.flat)[len(shared) :]:
        axes.set_visible(False)
    figure.supxlabel("requests a second")
    return figure


def _who(results: Results, cell: Cell) -> list[str]:
    return [server for server in results.servers if (server, cell) in results.turns]
