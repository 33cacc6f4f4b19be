"""Heat maps as a picture with one panel for each matrix."""

from difflib import get_close_matches
from math import ceil

import matplotlib
from matplotlib.figure import Figure

from heed_client.command.matrix import Matrices
from heed_options import CLOSE

MAX_MATRICES = 1024  # in one picture
MAX_LABELLED = 12  # matrices; more are small, without labels of rows and columns
MAX_LABELS = 48  # of rows or columns; more would overlap
PANELS = 0.75  # the share of the width that panels take, beside labels and the colour bar
CHARACTER = 0.6  # mean width of one, as a share of the size of its font
COLOURS, OF_DIFFERENCES = "magma", "RdBu_r"


def plot(
    matrices: Matrices, path: str, title: str = "", cmap: str | None = None, size: tuple[float, float] | None = None
) -> None:
    """Write a picture of ``size`` (width and height in inches) to ``path``, in the format of its suffix.

    Raises:
        ValueError: there are too many matrices, or matplotlib does not know ``cmap``.
        OSError: the file cannot be written.
    """
    count = len(matrices.all)
    if count > MAX_MATRICES:
        raise ValueError(f"expected at most {MAX_MATRICES:,} matrices, got {count:,}; select some with --at")
    if cmap is not None and cmap not in matplotlib.colormaps:
        close = get_close_matches(cmap, [*matplotlib.colormaps], 1, CLOSE)
        raise ValueError(f"unknown colour map {cmap!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    is_labelled = count <= MAX_LABELLED
    columns, rows = matrices.columns, ceil(count / matrices.columns)
    longest = max(max(matrix.weights.shape) for matrix in matrices.all)
    inches = min(8.0, max(3.0, 0.28 * longest)) if count == 1 else 3.0 if is_labelled else 1.2
    width, height = size or (columns * inches + 1, rows * inches + 0.3 * bool(title))
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    low, top = matrices.range
    has_headings = not is_labelled and _is_grid(matrices)
    for i, (axis, matrix) in enumerate(zip(axes, matrices.all, strict=False)):
        image = axis.imshow(
            matrix.weights, vmin=low, vmax=top, aspect="auto",
            cmap=cmap or (OF_DIFFERENCES if matrices.is_difference else COLOURS),
        )  # fmt: skip
        row, _, column = matrix.place.rpartition(", ")
        if not has_headings:
            name = matrix.name if is_labelled else matrix.place
            axis.set_title(name, fontsize=_font_size(name, PANELS * width / columns, 9 if is_labelled else 8), pad=3)
        elif i < columns:
            axis.set_title(column, fontsize=_font_size(column, PANELS * width / columns), pad=3)
        if has_headings and i % columns == 0:
            axis.set_ylabel(row, fontsize=_font_size(row, height / rows))
        font_size = 7 if count == 1 or longest <= 16 else 5
        for labels, set_ticks, rotation in ((matrix.queries, axis.set_yticks, 0), (matrix.keys, axis.set_xticks, 90)):
            if not is_labelled:
                set_ticks([])
            elif len(labels) <= MAX_LABELS:
                set_ticks(range(len(labels)), labels, fontsize=font_size, rotation=rotation)
    for axis in axes[count:]:
        axis.set_axis_off()
    figure.colorbar(image, ax=axes.tolist(), label="difference" if matrices.is_difference else "weight")
    figure.supylabel("query", fontsize=9)
    figure.supxlabel("key", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=150)


def _is_grid(matrices: Matrices) -> bool:
    """Whether all matrices of a column have the same end of their place, their head, and those of a row the rest."""
    places = [matrix.place.rpartition(", ") for matrix in matrices.all]
    columns = matrices.columns
    return all(
        column == places[i % columns][2] and row and row == places[i - i % columns][0]
        for i, (row, _, column) in enumerate(places)
    )


def _font_size(text: str, inches: float, largest: float = 8) -> float:
    """At most ``largest`` points, with which ``text`` is not longer than ``inches``."""
    return min(largest, 72 * inches / (CHARACTER * max(1, len(text))))
