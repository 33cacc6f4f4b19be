"""The plots of the report, as reproducible PNG."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot
from matplotlib.figure import Figure

from benchmarks.report.gate import Gate
from benchmarks.report.plots import STYLE, WIDTH, bars, save
from benchmarks.serving.cell import Cell
from benchmarks.serving.results import Results


def draw(results: Results, judged: Sequence[Gate], file: Path) -> list[Path]:
    """Write the plots that have data beside ``file``; return their paths."""
    with pyplot.rc_context(STYLE):
        return [
            save(figure, file.with_name(f"{file.stem}-{name}.png"))
            for name, figure in (("gates", bars(judged)), ("throughput", _throughput(results)))
            if figure is not None
        ]


def _throughput(results: Results) -> Figure | None:
    """A panel for each cell measured on Heed and another server: requests a second of each server."""
    shared = [
        cell for cell in results.cells
        if cell.ids == "none" and len(_measured(results, cell)) > 1 and "heed" in _measured(results, cell)
    ]  # fmt: skip
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


def _measured(results: Results, cell: Cell) -> list[str]:
    return [server for server in results.servers if (server, cell) in results.turns]
