"""The classification extension: instead of a tensor the largest values of each of its rows, as text."""

import numpy as np

from service.base.errors import Invalid
from service.base.steps import Steps
from service.tensors.bfloat16 import to_float32
from service.v2.datatypes import STRINGS_IN_STEP

RANKING_NS = 20  # of a number, at least, to find whether it is among the largest


def largest(name: str, array: np.ndarray, k: int, batched: bool) -> tuple[np.ndarray, np.ndarray]:
    """The k largest values of each row of the output ``name``, largest first, and their indices.

    Both are [batch, k], or [k] of a model without a batch axis; all values there are where k is more. Of values that
    are equal the first comes first. NaN counts as minus infinity.

    Raises:
        Invalid: the output has no numbers.
    """
    array = to_float32(array)
    if array.dtype.kind not in "iuf":
        raise Invalid(f"class result not available for output '{name}', which is not numeric")
    rows = array.reshape(len(array), -1) if batched and len(array) else array.reshape(1, -1)
    k = min(k, rows.shape[1])
    if k == 0:
        indices = np.empty((len(rows), 0), np.int64)
    else:
        negated = np.negative(rows, dtype=np.float64)
        negated[np.isnan(negated)] = np.inf
        last = np.partition(negated, k - 1, axis=1)[:, k - 1 : k].copy()
        chosen, equal = negated < last, negated == last
        missing = k - chosen.sum(axis=1, keepdims=True)
        places = equal.astype(np.int32)  # among those that are equal to the last; in place, as it holds the lock
        chosen |= equal & (np.cumsum(places, axis=1, out=places) <= missing)
        indices = chosen.nonzero()[1].reshape(len(rows), k)
        order = np.take_along_axis(negated, indices, axis=1).argsort(axis=1, kind="stable")
        indices = np.take_along_axis(indices, order, axis=1)
    values = np.take_along_axis(rows, indices, axis=1)
    return (values, indices) if batched else (values[0], indices[0])


def class_texts(values: np.ndarray, indices: np.ndarray) -> Steps[np.ndarray]:
    """Each of the ``values`` as ``value:index``, BYTES of the same shape."""
    texts = np.empty(values.size, np.object_)
    for start in range(0, values.size, STRINGS_IN_STEP):
        part = slice(start, start + STRINGS_IN_STEP)
        pairs = zip(values.reshape(-1)[part].tolist(), indices.reshape(-1)[part].tolist(), strict=True)
        texts[part] = [f"{value:f}:{index}" for value, index in pairs]
        yield
    return texts.reshape(values.shape)
