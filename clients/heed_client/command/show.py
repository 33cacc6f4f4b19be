"""Heat maps in the terminal, drawn with background colours, or with block characters if it has no colours."""

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.text import Text

from heed_client.command.matrix import Matrices, Matrix

SHADES = "·░▒▓█"
COLOURS = np.array([[26, 26, 46], [76, 29, 149], [190, 24, 93], [249, 115, 22], [254, 249, 195]])  # dark to light
OF_DIFFERENCES = np.array([[33, 102, 172], [146, 197, 222], [247, 247, 247], [244, 165, 130], [178, 24, 43]])
MAX_LABEL = 12  # characters of a label


def show(matrices: Matrices, console: Console) -> None:
    """Print each matrix. A cell is two characters wide; in a narrow terminal it is the maximum of several weights."""
    colours = OF_DIFFERENCES if matrices.is_difference else COLOURS
    for matrix in matrices.all:
        _print(matrix, *matrices.range, colours, console, matrices.has_all_rows)


def _print(matrix: Matrix, low: float, top: float, colours: np.ndarray, console: Console, has_all_rows: bool) -> None:
    width = min(MAX_LABEL, max(map(cell_len, matrix.queries), default=0))
    step = max(1, -(-matrix.weights.shape[1] // max(1, (console.width - width - 1) // 2)))
    rows = 1 if has_all_rows else step
    pooled = _pooled(matrix.weights, rows, step)
    note = f", a cell is the largest of {rows} x {step}" if step > 1 else ""
    console.print(Text(f"{matrix.name}: {low:.2f} to {top:.2f}{note}", style="bold"), soft_wrap=True)
    for letters in _column_labels(matrix.keys[::step]):
        console.print(Text(f"{'':{width}} {letters}".rstrip()), soft_wrap=True)
    for label, row in zip(matrix.queries[::rows], (pooled - low) / (top - low), strict=True):
        line = Text(set_cell_size(label, min(width, cell_len(label))).rjust(width) + " ")
        for level in row:
            line.append_text(_cell(float(level), colours, console))
        console.print(line, soft_wrap=True)


def _pooled(weights: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The weight of the largest magnitude in each block of ``rows`` x ``columns`` cells."""
    m, n = weights.shape
    padded = np.pad(weights, ((0, -m % rows), (0, -n % columns)))
    cells = padded.reshape(len(padded) // rows, rows, padded.shape[1] // columns, columns)
    low, top = cells.min(axis=(1, 3)), cells.max(axis=(1, 3))
    pooled: np.ndarray = np.where(-low > top, low, top)
    return pooled


def _column_labels(keys: Sequence[str]) -> list[str]:
    """Lines that hold the labels of the columns, written from top to bottom."""
    height = min(MAX_LABEL, max(map(len, keys), default=0))
    return ["".join(f"{label[:height].rjust(height)[i]} " for label in keys) for i in range(height)]


def _cell(level: float, colours: np.ndarray, console: Console) -> Text:
    if console.color_system is None:
        return Text(2 * SHADES[round(level * (len(SHADES) - 1))])
    position = level * (len(colours) - 1)
    low = min(int(position), len(colours) - 2)
    red, green, blue = (colours[low] + (position - low) * (colours[low + 1] - colours[low])).astype(int)
    return Text("  ", Style(bgcolor=f"rgb({red},{green},{blue})"))
