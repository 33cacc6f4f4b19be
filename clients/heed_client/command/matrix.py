"""Selection of the attention matrices to draw, with labels for their rows and columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, NamedTuple

import numpy as np

from heed_client.answer import wrong_index

MAX_COLUMNS = 32  # of a grid


class Labels(NamedTuple):
    """Labels of the queries and keys of one text; positions if there are none."""

    queries: Sequence[str] = ()
    keys: Sequence[str] = ()
    padding: Sequence[bool] = ()  # whether a query is padding, which is not drawn, nor is its key


class Matrix(NamedTuple):
    """Weights [m, n] with a label for each query (row) and key (column)."""

    name: str
    place: str  # the end of the name: which layer and head
    weights: np.ndarray
    queries: Sequence[str]
    keys: Sequence[str]


@dataclass(frozen=True)
class Matrices:
    """All matrices of a drawing, which are ``columns`` wide in a grid. With ``has_all_rows`` only keys are pooled."""

    all: Sequence[Matrix]
    columns: int
    is_difference: bool
    has_all_rows: bool = False

    @property
    def range(self) -> tuple[float, float]:
        """From 0, or from the smallest weight if it is negative, to the largest; for differences, symmetric about 0."""
        sized = [matrix.weights for matrix in self.all if matrix.weights.size]
        low = min([0.0, *(float(weights.min()) for weights in sized)])
        top = max([low, *(float(weights.max()) for weights in sized)])
        if self.is_difference:
            largest = max(-low, top) or 1.0
            return -largest, largest
        return low, top if top > low else low + 1


def matrices(
    weights: np.ndarray,
    at: Sequence[int] = (),
    texts: Sequence[Labels] = (Labels(),),
    chosen: Mapping[str, Sequence[int]] | None = None,
    *,
    name: str = "weights",
    axes: Sequence[str] = (),
    batch_axis: int = 0,
    subtracted: np.ndarray | None = None,
) -> Matrices:
    """Select the matrices of ``weights`` [..., m, n] under the leading index ``at``.

    ``texts`` are the labels of one text, or of each row of the axis ``batch_axis``; those of keys default to those of
    the queries if m = n. ``chosen`` has the numbers of the layers and heads, for the names of the matrices, if the
    answer has only some of them. ``axes`` are the names of the leading axes, in the singular; an axis "row" with one
    row is not named. ``subtracted`` are weights of the same shape, which are subtracted before drawing.

    Raises:
        ValueError: the index, the labels or the shape do not fit; the message begins with ``at``, ``labels`` or
            ``compare``.
    """
    leading, (m, n) = weights.shape[:-2], weights.shape[-2:]
    if len(at) > len(leading) or any(not 0 <= index < length for index, length in zip(at, leading, strict=False)):
        raise wrong_index(at, leading)
    if subtracted is not None:
        if subtracted.shape != weights.shape:
            raise ValueError(
                f"compare: {list(subtracted.shape)} is not the shape of the answer, {list(weights.shape)}; "
                "compare as many layers, heads, queries and keys"
            )
        weights, name = weights - subtracted, "difference"
    labels = [_filled(own, m, n) for own in texts]
    numbers = [list(range(length)) for length in leading]
    for axis, found in (chosen or {}).items():
        at_axis = -1 if axis == "heads" else 0
        if leading and len(found) == leading[at_axis]:
            numbers[at_axis] = list(found)
    selected = []
    for rest in np.ndindex(leading[len(at) :]):
        index = (*at, *rest)
        place = _place([of[i] for of, i in zip(numbers, index, strict=True)], axes, leading)
        queries, keys, padding = labels[index[batch_axis] if len(labels) > 1 else 0]
        rows = [i for i in range(m) if not (padding and padding[i])]
        columns = rows if m == n else [*range(n)]
        cells = weights[index][np.ix_(rows, columns)]
        selected.append(
            Matrix(
                _named(name, place, bool(axes)), place, cells, [queries[i] for i in rows], [keys[i] for i in columns]
            )
        )
    lengths = [length for length in leading[len(at) :] if length > 1]
    is_grid = len(lengths) > 1 and lengths[-1] <= MAX_COLUMNS
    return Matrices(selected, lengths[-1] if is_grid else ceil(sqrt(len(selected))), subtracted is not None)


def _place(index: Sequence[int], axes: Sequence[str], lengths: Sequence[int]) -> str:
    """Which layer, row and head a matrix is of: ``layer 3, head 1``; without names of axes ``3, 1``."""
    if not axes:
        return ", ".join(map(str, index))
    named = zip(index, axes, lengths, strict=True)
    return ", ".join(f"{axis} {i}" for i, axis, length in named if axis != "row" or length > 1)


def _named(name: str, place: str, is_in_words: bool) -> str:
    return name if not place else f"{name}, {place}" if is_in_words else f"{name}[{place}]"


def expanded(indices: Any) -> list[int]:
    """The numbers of ``indices``: a number, a list, or text such as "0,3,5:8". Empty if one counts from the end."""
    if indices is None:
        return []
    numbers: list[int] = []
    for part in indices.split(",") if isinstance(indices, str) else np.ravel(indices).tolist():
        start, colon, stop = str(part).strip().partition(":")
        if not start.isdecimal() or (colon and not stop.isdecimal()):
            return []
        numbers += range(int(start), int(stop)) if colon else [int(start)]
    return numbers


def _filled(labels: Labels, m: int, n: int) -> Labels:
    """``labels`` with a label for each of the ``m`` queries and ``n`` keys."""
    keys = labels.keys or (labels.queries if m == n else ())
    for axis, given, count in (("queries", labels.queries, m), ("keys", keys, n)):
        if given and len(given) != count:
            raise ValueError(f"labels: expected {count}, one for each of the {axis}, got {len(given)}")
    return Labels(labels.queries or [*map(str, range(m))], keys or [*map(str, range(n))], labels.padding)
