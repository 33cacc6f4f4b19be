"""The matrices to look at: of all weights those under an index, with the words that stand at their rows and columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Matrices:
    """Weights [..., m, n] under a leading index, as [count, m, n]; ``names`` tell them apart."""

    names: Sequence[str]
    weights: np.ndarray
    queries: Sequence[str]
    keys: Sequence[str]

    @property
    def range(self) -> tuple[float, float]:
        """From 0, or the least weight where a block has negative ones, to the largest."""
        low, top = min(0.0, float(self.weights.min())), float(self.weights.max())
        return low, top if top > low else low + 1


def matrices(
    weights: np.ndarray, at: Sequence[int] = (), queries: Sequence[str] = (), keys: Sequence[str] = ()
) -> Matrices:
    """Those under the leading index ``at``; columns without words have those of as many rows, else
    their numbers, as rows do.

    Raises:
        ValueError: the index or the words do not fit; the message begins with ``at`` or ``labels``.
    """
    leading, (m, n) = weights.shape[:-2], weights.shape[-2:]
    if len(at) > len(leading) or any(not 0 <= index < length for index, length in zip(at, leading, strict=False)):
        raise ValueError(f"at: {list(at)} is not within the leading axes {list(leading)} of the weights")
    under = weights[tuple(at)]
    names = [
        f"weights[{', '.join(map(str, (*at, *more)))}]" if leading else "weights"
        for more in np.ndindex(under.shape[:-2])
    ]
    rows = _words("queries", queries, m)
    columns = _words("keys", keys or (queries if m == n else ()), n)
    return Matrices(names, under.reshape(-1, m, n), rows, columns)


def _words(which: str, given: Sequence[str], count: int) -> Sequence[str]:
    if given and len(given) != count:
        raise ValueError(f"labels: {len(given)} words for {count} {which}")
    return given or [str(index) for index in range(count)]
