"""Reductions of attention: selection, mean and maximum over an axis, pooling, the largest weights, and uint8.

The last two axes of an attention array are queries and keys.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from service.base.errors import Invalid
from service.selection.indices import Pick
from service.tensors.bfloat16 import to_float32

MAX_PART_NUMBERS = 1 << 18  # computed with at one time, so that temporary arrays stay in the cache
# Rows of at least so many numbers for each of the k largest are divided into several runs for each of these.
MIN_LONG_ROW, LONG_ROW_RUNS = 1 << 10, 16
LEVELS = 255  # of a uint8, above 0


def select(array: np.ndarray, picks: Mapping[int, Pick]) -> np.ndarray:
    """The ``picks`` of each axis: a view of ``array`` where all of them are slices, else a copy of the selection."""
    slices = [slice(None)] * array.ndim
    lists: dict[int, np.ndarray] = {}
    for axis, pick in picks.items():
        if isinstance(pick, slice):
            slices[axis] = pick
        else:
            lists[axis] = pick
    view = array[tuple(slices)]
    if not lists:
        return view
    axes = range(-view.ndim, max(lists) + 1)  # the rest stays whole, and is copied in runs
    selected: np.ndarray = view[np.ix_(*(lists.get(axis, np.arange(view.shape[axis])) for axis in axes))]
    return selected


def parts(array: np.ndarray, keep: int) -> Iterator[tuple[int | slice, ...]]:
    """Indices of the parts of ``array`` to compute with one after another; its last ``keep`` axes are never divided."""
    if array.size <= MAX_PART_NUMBERS or array.ndim == keep:
        yield ()
        return
    each = array.size // len(array)
    if each <= MAX_PART_NUMBERS:
        step = MAX_PART_NUMBERS // each
        for start in range(0, len(array), step):
            yield (slice(start, start + step),)
        return
    for row in range(len(array)):
        for rest in parts(array[row], keep):
            yield (row, *rest)


def as_float32(array: np.ndarray) -> np.ndarray:
    """``array`` as float32, a copy of float16 and bfloat16."""
    return to_float32(array).astype(np.float32, copy=False)


def reduce(array: np.ndarray, axis: int, by: Literal["mean", "max"]) -> np.ndarray:
    """The mean, summed in float32, or the largest of the numbers along ``axis``."""
    array = to_float32(array)
    reduced: np.ndarray = array.mean(axis, dtype=np.float32) if by == "mean" else array.max(axis)
    return reduced


def pool(array: np.ndarray, k: int, by: Literal["mean", "max"]) -> np.ndarray:
    """Cells of queries and keys: at most ``k`` of each, in float32. An axis of at most ``k`` stays as it is.

    Cell i has the places from floor(i n / k) up to floor((i + 1) n / k), so that sizes differ by one at most. A mean
    counts every weight of its cell alike.
    """
    m, n = array.shape[-2:]
    pooled = np.empty((*array.shape[:-2], min(m, k), min(n, k)), np.float32)
    for index in parts(array, 2):
        part = as_float32(array[index])
        for axis, size in ((-1, n), (-2, m)):
            if size <= k:
                continue
            edges = np.arange(k + 1) * size // k
            if by == "max":
                part = np.maximum.reduceat(part, edges[:-1], axis)
            else:
                sizes = np.diff(edges)
                part = np.add.reduceat(part, edges[:-1], axis, np.float64)
                part /= sizes if axis == -1 else sizes[:, None]
        pooled[index] = part
    return pooled


def largest(weights: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the k largest weights of each query, and these, largest first; of equal ones the earlier key."""
    shape = (*weights.shape[:-1], k)
    indices, values = np.empty(shape, np.int64), np.empty(shape, weights.dtype)
    for index in parts(weights, 1):
        part = weights[index]
        order = _order(to_float32(part), k)
        indices[index], values[index] = order, np.take_along_axis(part, order, axis=-1)
    return indices, values


def _order(weights: np.ndarray, k: int) -> np.ndarray:
    """The places of the k largest numbers of each row. To find the k-th and sort k is faster than to sort all."""
    n = weights.shape[-1]
    if n >= MIN_LONG_ROW * k:
        return np.stack([_order_of_long(row, k) for row in weights.reshape(-1, n)]).reshape(*weights.shape[:-1], k)
    if 4 * k > n or np.isnan(weights).any():
        return np.argsort(-weights, axis=-1, kind="stable")[..., :k]
    rows = weights.reshape(-1, n)
    least = np.partition(rows, n - k, axis=-1)[:, n - k, None]
    larger, equal = rows > least, rows == least
    room = k - np.count_nonzero(larger, axis=-1)[:, None]
    chosen = larger | (equal & (np.cumsum(equal, axis=-1) <= room))
    places = np.nonzero(chosen)[1].reshape(-1, k)  # of each row in ascending order
    order = np.argsort(-np.take_along_axis(rows, places, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(places, order, axis=-1).reshape(*weights.shape[:-1], k)


def _order_of_long(row: np.ndarray, k: int) -> np.ndarray:
    """The same of one row, from few candidates.

    Each of the k largest numbers is at least as large as the k-th largest of the maxima of k or more runs.
    """
    n = len(row)
    length = n // (LONG_ROW_RUNS * k)
    maxima = row[: n - n % length].reshape(-1, length).max(-1)
    if np.isnan(maxima).any() or np.isnan(row[n - n % length :]).any():
        return np.argsort(-row, kind="stable")[:k]
    candidates = np.flatnonzero(row >= np.partition(maxima, len(maxima) - k)[-k])
    if len(candidates) > n // 4:  # most numbers are equal
        return np.argsort(-row, kind="stable")[:k]
    order = np.argsort(-row[candidates], kind="stable")[:k]
    return np.asarray(candidates[order])


def quantize(name: str, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``weights`` as uint8, of which 255 is the largest weight, and the scale, float32 [1]: weight = uint8 * scale.

    A weight is off by half the scale at most.

    Raises:
        Invalid: a weight is negative or not finite.
    """
    weights = to_float32(weights)
    if not weights.size:
        return weights.astype(np.uint8), np.zeros(1, np.float32)
    low, top = float(weights.min()), float(weights.max())
    if not np.isfinite(low) or not np.isfinite(top):
        raise Invalid(f"{name} is not finite: the inputs overflow {weights.dtype}")
    if low < 0:
        raise Invalid(f"uint8 requires weights of at least 0, got {low:.3g} in {name}", "weights_dtype")
    levels = np.empty(weights.shape, np.uint8)
    factor = np.float32(LEVELS / top) if top else np.float32(0)
    for index in parts(weights, 1):
        levels[index] = np.rint(as_float32(weights[index]) * factor)
    return levels, np.array([top / LEVELS], np.float32)
