"""Whatever holds numbers, as numpy."""

from typing import Any

import numpy as np

Given = Any  # an array, nested lists, a torch tensor, a number or a flag
KINDS = "biuf"  # numpy's booleans, integers, floats


def array(name: str, given: Given) -> np.ndarray:
    """``given`` in little-endian, at most 64 bits a number; bfloat16, which numpy does not have, as float32.

    Raises:
        ValueError: lists of different lengths.
        TypeError: neither numbers nor booleans.
    """
    if hasattr(given, "detach"):  # a torch tensor, on whatever device
        given = (given.float() if str(given.dtype) == "torch.bfloat16" else given).numpy(force=True)
    try:
        found = np.asarray(given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if found.dtype.name == "bfloat16":
        found = found.astype(np.float32)
    if found.dtype.kind not in KINDS:
        raise TypeError(f"{name}: expected numbers or booleans, got {found.dtype}")
    if found.dtype.itemsize > 8:
        found = found.astype(np.float64)
    return np.ascontiguousarray(found, found.dtype.newbyteorder("<")).reshape(found.shape)


def scalar(name: str, given: np.ndarray) -> bool | int | float:
    """The number or flag in an array without axes.

    Raises:
        ValueError: NaN or infinity, for which JSON has no word.
    """
    value: bool | int | float = given.item()
    if isinstance(value, float) and not np.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {value}")
    return value
