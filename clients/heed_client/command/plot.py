"""Heat maps as a picture with one panel for each matrix."""

from math import ceil, sqrt

from matplotlib.figure import Figure

from heed_client.command.matrix import Matrices

MAX_MATRICES = 64  # in one picture
MAX_LABELS = 48  # of rows or columns; more would overlap


def plot(matrices: Matrices, path: str) -> None:
    """Write a picture to ``path``, in the format of its suffix: png, svg, pdf.

    Raises:
        ValueError: matplotlib does not know the suffix, or there are too many matrices.
        OSError: the file cannot be written.
    """
    count, m, n = matrices.weights.shape
    if count > MAX_MATRICES:
        raise ValueError(f"{count} matrices are more than {MAX_MATRICES}: choose some with --at")
    columns = ceil(sqrt(count))
    rows = ceil(count / columns)
    inches = min(8.0, max(3.0, 0.28 * max(m, n))) if count == 1 else 3.0
    low, top = matrices.range
    figure = Figure(figsize=(columns * inches + 1, rows * inches), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axis, name, weights in zip(axes, matrices.names, matrices.weights, strict=False):
        image = axis.imshow(weights, vmin=low, vmax=top, cmap="magma", aspect="auto")
        axis.set_title(name, fontsize=9)
        font_size = 7 if count == 1 else 5
        if m <= MAX_LABELS:
            axis.set_yticks(range(m), matrices.queries, fontsize=font_size)
        if n <= MAX_LABELS:
            axis.set_xticks(range(n), matrices.keys, fontsize=font_size, rotation=90)
    for axis in axes[count:]:
        axis.set_axis_off()
    figure.colorbar(image, ax=axes.tolist(), label="weight")
    figure.supylabel("query", fontsize=9)
    figure.supxlabel("key", fontsize=9)
    figure.savefig(path, dpi=150)
