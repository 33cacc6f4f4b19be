"""Arrays in the types of a model's inputs, without a change of their values."""

from collections.abc import Sequence
from math import prod

import numpy as np

from service.base.errors import Invalid
from service.base.messages import counted
from service.tensors.bfloat16 import BFLOAT16, astype, dtype_name, to_float32


def cast(name: str, array: np.ndarray, dtype: np.dtype, mask: bool = False) -> np.ndarray:
    """``array`` as ``dtype``, with the same values. To be called where numpy does not warn of overflow.

    Raises:
        Invalid: fractions for integers, numbers for booleans, integers for a mask, NaN, infinity, or a number
            ``dtype`` cannot hold.
    """
    if array.dtype.kind == dtype.kind == "f":  # most requests: nothing below applies to such numbers
        values = array.astype(dtype, copy=False)
        if is_finite(values):
            return values
    if mask and array.dtype.kind in "iu":
        raise Invalid(
            "expected booleans (true = may attend) or floats (added to the scores), "
            f"got {array.dtype}, whose 0 and 1 are ambiguous",
            name,
        )
    if mask and array.dtype == np.bool_:
        return astype(np.where(array, 0, -np.inf), dtype)
    if (array.dtype.kind == "b") != (dtype.kind == "b"):
        raise Invalid(f"expected {kind_words(dtype)}, got {kind_words(array.dtype)}", name)
    if dtype.kind in "iu":
        array = to_float32(array)
        whole = array if array.dtype.kind in "iu" else array.astype(np.int64)
        if whole is not array and (whole != array).any():
            raise Invalid("expected whole numbers, got fractions", name)
        values = whole.astype(dtype, copy=False)
        if values.dtype != whole.dtype and ((values != whole).any() or ((values < 0) != (whole < 0)).any()):
            raise Invalid(f"contains a number out of range for {dtype}", name)
        return values
    values = astype(array, dtype)
    if dtype.kind != "b" and not is_finite(numbers := to_float32(values)):
        if np.isnan(numbers).any():
            raise Invalid("contains NaN", name)
        if not mask or np.isposinf(numbers).any():
            raise Invalid(f"contains infinity, or a number out of range for {dtype_name(dtype)}", name)
    return values


def is_finite(array: np.ndarray) -> bool:
    """No number in it is NaN or infinite."""
    return bool(np.count_nonzero(np.isfinite(array)) == array.size)  # several times quicker than all() on small arrays


def has_meaning(name: str, array: np.ndarray) -> bool:
    """Whether an output is finite; ``scores`` and ``lse`` may be -infinity, of masked keys and rows without any."""
    return is_finite(array) or (name in ("scores", "lse") and bool((array < np.inf).all()))


def from_bytes(name: str, dtype: str, data: bytes | bytearray | memoryview) -> np.ndarray:
    """The flat array of little-endian ``data``.

    Raises:
        Invalid: it ends within a number.
    """
    numpy_dtype = BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("<")
    if len(data) % numpy_dtype.itemsize:
        raise Invalid(
            f"base64 has {counted(len(data), 'byte')}, not a multiple of {numpy_dtype.itemsize} ({dtype})", name
        )
    return np.frombuffer(data, numpy_dtype)


def check_shape(name: str, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """``array`` in the ``shape`` that the request declares for it.

    Raises:
        Invalid: it has another count of numbers, or another nesting.
    """
    if array.ndim > 1 and list(array.shape) != shape:
        raise Invalid(f"shape {shape} was declared, but data is nested as {list(array.shape)}", name)
    if array.size != prod(shape):
        raise Invalid(f"shape {shape} needs {counted(prod(shape), 'number')}, got {array.size:,}", name)
    return array.reshape(shape)


def kind_words(dtype: np.dtype, one: bool = False) -> str:
    words = {"b": "booleans", "i": "whole numbers", "u": "whole numbers"}.get(dtype.kind, "numbers")
    return f"a {words[:-1]}" if one else words
