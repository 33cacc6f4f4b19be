"""Selection of the attention matrices to draw, with labels for their rows and columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
    weights: np.ndarray, at: Sequence[int] = (), queries: Sequence[str] = (), keys: Sequence[str] = ()
) -> Matrices:
    """Select the matrices of ``weights`` [..., m, n] under the leading index ``at``.

    Labels default to the position; those of keys default to those of the queries if m = n.

    Raises:
        ValueError: the index or the number of labels does not fit; the message begins with ``at`` or ``labels``.
    """
    leading, (m, n) = weights.shape[:-2], weights.shape[-2:]
    if len(at) > len(leading) or any(not 0 <= index < length for index, length in zip(at, leading, strict=False)):
        raise ValueError(f"at: {list(at)} is not within the leading axes {list(leading)} of the weights")
    selected = weights[tuple(at)]
    names = [
        f"weights[{', '.join(map(str, (*at, *index)))}]" if leading else "weights"
        for index in np.ndindex(selected.shape[:-2])
    ]
    rows = _labels("queries", queries, m)
    columns = _labels("keys", keys or (queries if m == n else ()), n)
    return Matrices(names, selected.reshape(-1, m, n), rows, columns)


def _labels(axis: str, labels: Sequence[str], count: int) -> Sequence[str]:
    if labels and len(labels) != count:
        raise ValueError(f"labels: {len(labels)} words for {count} {axis}")
    return labels or [str(index) for index in range(count)]
