"""The classification extension: instead of a tensor, its k largest values as ``value:index``, largest first."""

import numpy as np

from service.errors import Invalid
from service.v2 import texts


def classify(name: str, array: np.ndarray, k: int, batched: bool) -> np.ndarray:
    """BYTES ``[batch, k]``, or ``[k]`` of a model without a batch axis; all there are where k is more.

    Raises:
        Invalid: the output holds no numbers.
    """
    if array.dtype.kind not in "iuf":
        raise Invalid(f"class result not available for output '{name}', which holds no numbers")
    rows = array.reshape(len(array), -1) if batched and len(array) else array.reshape(1, -1)
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :k]
    found = texts.array([f"{row[i]:f}:{i}" for row, best in zip(rows, order, strict=True) for i in best])
    return found.reshape(order.shape if batched else order.shape[1:])
