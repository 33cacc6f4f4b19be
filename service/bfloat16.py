"""bfloat16, which numpy does not have: two bytes a number, handed to ONNX Runtime and taken from it as they are.

It is the upper half of a float32. Where numbers are read or written as text, they are float32.
"""

import numpy as np

BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # a record, so that it is told from uint16
ELEMENT = 16  # TensorProto.BFLOAT16


def astype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``array.astype(dtype, copy=False)``, of BFLOAT16 and to it, too: the nearest number, of two the even one."""
    if array.dtype == dtype:
        return array
    if array.dtype == BFLOAT16:
        array = wide(array)
    if dtype != BFLOAT16:
        return array.astype(dtype, copy=False)
    exact = array.astype(np.float32, copy=False)
    bits = exact.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    quiet = bits >> 16 | 0x40  # a NaN that stays one
    return np.where(np.isnan(exact), quiet, rounded).astype(np.uint16).view(BFLOAT16)


def wide(array: np.ndarray) -> np.ndarray:
    """BFLOAT16 as float32, which holds every one; any other array as it is."""
    if array.dtype != BFLOAT16:
        return array
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def name_of(dtype: np.dtype) -> str:
    """What a type is called: float32, bfloat16."""
    return "bfloat16" if dtype == BFLOAT16 else str(dtype)
