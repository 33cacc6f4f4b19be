"""Heat maps in the terminal, drawn with background colours, or with block characters if it has no colours."""

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.text import Text

from heed_client.command.matrix import Matrices

SHADES = "·░▒▓█"
COLOURS = np.array([[26, 26, 46], [76, 29, 149], [190, 24, 93], [249, 115, 22], [254, 249, 195]])  # dark to light
MAX_LABEL = 12  # characters of a label


def show(matrices: Matrices, console: Console) -> None:
    """Print each matrix. A cell is two characters wide; in a narrow terminal it is the maximum of several weights."""
    for name, weights in zip(matrices.names, matrices.weights, strict=True):
        _print(name, weights, matrices, console)


def _print(name: str, weights: np.ndarray, matrices: Matrices, console: Console) -> None:
    width = min(MAX_LABEL, max(map(cell_len, matrices.queries)))
    step = -(-weights.shape[1] // max(1, (console.width - width - 1) // 2))
    pooled = _max_pool(weights, step)
    low, top = matrices.range
    note = f", a cell is the largest of {step} x {step}" if step > 1 else ""
    console.print(Text(f"{name}: {low:.2f} to {top:.2f}{note}", style="bold"), soft_wrap=True)
    for letters in _column_labels(matrices.keys[::step]):
        console.print(Text(f"{'':{width}} {letters}".rstrip()), soft_wrap=True)
    for label, row in zip(matrices.queries[::step], (pooled - low) / (top - low), strict=True):
        line = Text(set_cell_size(label, min(width, cell_len(label))).rjust(width) + " ")
        for level in row:
            line.append_text(_cell(float(level), console))
        console.print(line, soft_wrap=True)


def _max_pool(weights: np.ndarray, step: int) -> np.ndarray:
    m, n = weights.shape
    padded = np.pad(weights, ((0, -m % step), (0, -n % step)))
    rows, columns = (length // step for length in padded.shape)
    pooled: np.ndarray = padded.reshape(rows, step, columns, step).max(axis=(1, 3))
    return pooled


def _column_labels(keys: Sequence[str]) -> list[str]:
    """Lines that hold the labels of the columns, written from top to bottom."""
    height = min(MAX_LABEL, max(map(len, keys)))
    return ["".join(f"{label[:height].rjust(height)[i]} " for label in keys) for i in range(height)]


def _cell(level: float, console: Console) -> Text:
    if console.color_system is None:
        return Text(2 * SHADES[round(level * (len(SHADES) - 1))])
    position = level * (len(COLOURS) - 1)
    low = min(int(position), len(COLOURS) - 2)
    red, green, blue = (COLOURS[low] + (position - low) * (COLOURS[low + 1] - COLOURS[low])).astype(int)
    return Text("  ", Style(bgcolor=f"rgb({red},{green},{blue})"))
