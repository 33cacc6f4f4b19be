"""Selection of the attention matrices to draw, with labels for their rows and columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heed_client.answer import wrong_index


@dataclass(frozen=True)
class Matrices:
    """Weights [count, m, n] with a name for each matrix, and a label for each query (row) and key (column)."""

    names: Sequence[str]
    weights: np.ndarray
    queries: Sequence[str]
    keys: Sequence[str]

    @property
    def range(self) -> tuple[float, float]:
        """From 0, or from the smallest weight if it is negative, to the largest weight."""
        low, top = min(0.0, float(self.weights.min())), float(self.weights.max())
        return low, top if top > low else low + 1


def matrices(
    weights: np.ndarray,
    at: Sequence[int] = (),
    queries: Sequence[str] = (),
    keys: Sequence[str] = (),
    chosen: Mapping[str, Sequence[int]] | None = None,
) -> Matrices:
    """Select the matrices of ``weights`` [..., m, n] under the leading index ``at``.

    Labels default to the position; those of keys default to those of the queries if m = n. ``chosen`` has the numbers
    of the layers and of the heads that an answer has only some of; the names of the matrices say them.

    Raises:
        ValueError: the index or the number of labels does not fit; the message begins with ``at`` or ``labels``.
    """
    leading, (m, n) = weights.shape[:-2], weights.shape[-2:]
    if len(at) > len(leading) or any(not 0 <= index < length for index, length in zip(at, leading, strict=False)):
        raise wrong_index(at, leading)
    selected = weights[tuple(at)]
    numbers = [list(range(length)) for length in leading]
    for axis, found in (chosen or {}).items():
        place = -1 if axis == "heads" else 0
        if leading and len(found) == leading[place]:
            numbers[place] = list(found)
    names = [
        f"weights[{', '.join(str(of[i]) for of, i in zip(numbers, (*at, *index), strict=True))}]"
        if leading
        else "weights"
        for index in np.ndindex(selected.shape[:-2])
    ]
    rows = _labels("queries", queries, m)
    columns = _labels("keys", keys or (queries if m == n else ()), n)
    return Matrices(names, selected.reshape(-1, m, n), rows, columns)


def expanded(indices: Any) -> list[int]:
    """The numbers of ``indices``: a number, a list, or text such as "0,3,5:8". None if one counts from the end."""
    if indices is None:
        return []
    numbers: list[int] = []
    for part in indices.split(",") if isinstance(indices, str) else np.ravel(indices).tolist():
        start, colon, stop = str(part).strip().partition(":")
        if not start.isdecimal() or (colon and not stop.isdecimal()):
            return []
        numbers += range(int(start), int(stop)) if colon else [int(start)]
    return numbers


def _labels(axis: str, labels: Sequence[str], count: int) -> Sequence[str]:
    if labels and len(labels) != count:
        raise ValueError(f"labels: {len(labels)} words for {count} {axis}")
    return labels or [str(index) for index in range(count)]
