"""Heat maps as a picture, one for each matrix."""

from math import ceil, sqrt

from matplotlib.figure import Figure

from heed_client.matrix import Matrices

MOST = 64  # matrices in one picture
WORDS = 48  # rows or columns, above which words would overlap


def plot(found: Matrices, path: str) -> None:
    """Write a picture in the format of the suffix: png, svg, pdf.

    Raises:
        ValueError: a suffix that matplotlib does not know, or too many matrices.
        OSError: it cannot be written.
    """
    count, m, n = found.weights.shape
    if count > MOST:
        raise ValueError(f"{count} matrices are more than {MOST}: choose some with --at")
    columns = ceil(sqrt(count))
    rows = ceil(count / columns)
    inches = min(8.0, max(3.0, 0.28 * max(m, n))) if count == 1 else 3.0
    low, top = found.range
    figure = Figure(figsize=(columns * inches + 1, rows * inches), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axis, name, weights in zip(axes, found.names, found.weights, strict=False):
        image = axis.imshow(weights, vmin=low, vmax=top, cmap="magma", aspect="auto")
        axis.set_title(name, fontsize=9)
        small = 7 if count == 1 else 5
        if m <= WORDS:
            axis.set_yticks(range(m), found.queries, fontsize=small)
        if n <= WORDS:
            axis.set_xticks(range(n), found.keys, fontsize=small, rotation=90)
    for axis in axes[count:]:
        axis.set_axis_off()
    figure.colorbar(image, ax=axes.tolist(), label="weight")
    figure.supylabel("query", fontsize=9)
    figure.supxlabel("key", fontsize=9)
    figure.savefig(path, dpi=150)
