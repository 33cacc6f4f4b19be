"""A heat map in the terminal: colours where it has them, shades where it has not."""

from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.text import Text

from heed_client.matrix import Matrices

SHADES = "·░▒▓█"
COLOURS = np.array([[26, 26, 46], [76, 29, 149], [190, 24, 93], [249, 115, 22], [254, 249, 195]])  # dark to light
LONGEST = 12  # columns of a row's word


def show(found: Matrices, console: Console) -> None:
    """Print each matrix; a cell is two columns wide, and stands for the largest of several where there is no room."""
    for name, weights in zip(found.names, found.weights, strict=True):
        _print(name, weights, found, console)


def _print(name: str, weights: np.ndarray, found: Matrices, console: Console) -> None:
    width = min(LONGEST, max(map(cell_len, found.queries)))
    step = -(-weights.shape[1] // max(1, (console.width - width - 1) // 2))
    pooled = _largest(weights, step)
    low, top = found.range
    note = f", a cell is the largest of {step} x {step}" if step > 1 else ""
    console.print(Text(f"{name}: {low:.2f} to {top:.2f}{note}", style="bold"), soft_wrap=True)
    for letters in _heads(found.keys[::step]):
        console.print(Text(f"{'':{width}} {letters}".rstrip()), soft_wrap=True)
    for word, row in zip(found.queries[::step], (pooled - low) / (top - low), strict=True):
        line = Text(set_cell_size(word, min(width, cell_len(word))).rjust(width) + " ")
        for level in row:
            line.append_text(_cell(float(level), console))
        console.print(line, soft_wrap=True)


def _largest(weights: np.ndarray, step: int) -> np.ndarray:
    m, n = weights.shape
    padded = np.pad(weights, ((0, -m % step), (0, -n % step)))
    rows, columns = (length // step for length in padded.shape)
    pooled: np.ndarray = padded.reshape(rows, step, columns, step).max(axis=(1, 3))
    return pooled


def _heads(keys: Sequence[str]) -> list[str]:
    """The words of the columns, from top to bottom."""
    height = min(LONGEST, max(map(len, keys)))
    return ["".join(f"{word[:height].rjust(height)[at]} " for word in keys) for at in range(height)]


def _cell(level: float, console: Console) -> Text:
    if console.color_system is None:
        return Text(2 * SHADES[round(level * (len(SHADES) - 1))])
    place = level * (len(COLOURS) - 1)
    low = min(int(place), len(COLOURS) - 2)
    red, green, blue = (COLOURS[low] + (place - low) * (COLOURS[low + 1] - COLOURS[low])).astype(int)
    return Text("  ", Style(bgcolor=f"rgb({red},{green},{blue})"))
