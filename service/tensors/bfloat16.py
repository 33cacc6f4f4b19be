"""bfloat16, which numpy does not have: two bytes a number, passed to and from ONNX Runtime unchanged.

It is the upper half of a float32. Where numbers are read or written as text, they are float32.
"""

import numpy as np

BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # a record, to distinguish it from uint16
ELEMENT = 16  # TensorProto.BFLOAT16


def astype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``array.astype(dtype, copy=False)``, also from and to BFLOAT16: rounded to the nearest number, ties to even."""
    if array.dtype == dtype:
        return array
    if array.dtype == BFLOAT16:
        array = to_float32(array)
    if dtype != BFLOAT16:
        return array.astype(dtype, copy=False)
    exact = array.astype(np.float32, copy=False)
    bits = exact.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    quiet = bits >> 16 | 0x40  # rounding could make infinity of a NaN
    return np.where(np.isnan(exact), quiet, rounded).astype(np.uint16).view(BFLOAT16)


def to_float32(array: np.ndarray) -> np.ndarray:
    """A BFLOAT16 array as float32, which is exact; any other array unchanged."""
    if array.dtype != BFLOAT16:
        return array
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def dtype_name(dtype: np.dtype) -> str:
    """The name of a type: float32, bfloat16."""
    return "bfloat16" if dtype == BFLOAT16 else str(dtype)
