"""Plots as reproducible PNG: the same numbers give the same file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from matplotlib.figure import Figure

from benchmarks.report.gate import Gate

STYLE: Any = {
    "backend": "agg",
    "savefig.dpi": 120,
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
WIDTH = 8  # inches


def save(figure: Figure, path: Path) -> Path:
    """Write and close a figure; return ``path``."""
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
    return path


def bars(judged: Sequence[Gate]) -> Figure | None:
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
