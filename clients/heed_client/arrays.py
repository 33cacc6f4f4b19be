"""Conversion of tensors and numbers to numpy arrays."""

from typing import Any

import numpy as np

TensorLike = Any  # an array, nested lists, a torch tensor, a number or a boolean
KINDS = "biuf"  # numpy's booleans, integers, floats
# As in the API's JSON, None in their lists is -infinity, and integers in lists become floats.
MASKS = ("attn_mask", "memory_mask")


def array(name: str, tensor: TensorLike) -> np.ndarray:
    """``tensor`` as a little-endian array of at most 64 bits a number; bfloat16 becomes float32.

    Raises:
        ValueError: the nested lists have different lengths.
        TypeError: the elements are neither numbers nor booleans.
    """
    if hasattr(tensor, "detach"):  # a torch tensor on any device
        tensor = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy(force=True)
    try:
        result = _mask(name, tensor) if name in MASKS and isinstance(tensor, (list, tuple)) else np.asarray(tensor)
    except OverflowError:
        raise ValueError(f"{name}: expected integers of at most 64 bits") from None
    except ValueError as error:
        problem = _ragged(tensor) or str(error)
        raise ValueError(f"{name}: {problem}") from None
    if result.dtype.name == "bfloat16":  # ml_dtypes'
        result = result.astype(np.float32)
    if result.dtype.kind not in KINDS:
        is_text = isinstance(tensor, str) or (result.dtype.kind == "U" and result.ndim == 1)
        hint = "; for a text use text=..." if name == "query" and is_text else ""
        raise TypeError(f"{name}: expected numbers or booleans, got {_found(result, tensor)}{hint}")
    if result.dtype.itemsize > 8:
        result = result.astype(np.float64)
    return np.ascontiguousarray(result, result.dtype.newbyteorder("<")).reshape(result.shape)


def dtype_name(dtype: Any) -> Any:
    """The name of a numpy or torch dtype; names and None are unchanged."""
    if isinstance(dtype, type | np.dtype):
        return np.dtype(dtype).name
    return str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype


def _ragged(lists: Any, place: str = "") -> str:
    """A message about nested lists of different lengths; empty if there are none, or if a list is beside a number."""
    if not isinstance(lists, list | tuple) or not any(isinstance(item, list | tuple) for item in lists):
        return ""
    first = _length(lists[0])
    for i, item in enumerate(lists):
        if (other := _length(item)) != first:
            return f"expected rows of one length, got {first} at {place}[0] and {other} at {place}[{i}]"
    return next(filter(None, (_ragged(item, f"{place}[{i}]") for i, item in enumerate(lists))), "")


def _length(item: Any) -> str:
    return f"{len(item)} item{'s' * (len(item) != 1)}" if isinstance(item, list | tuple) else "a number"


def _found(array: np.ndarray, tensor: Any) -> str:
    """A description of the content of a non-numeric array that numpy made from ``tensor``."""
    if array.dtype.kind in "US":
        text = next((item for item in np.asarray(tensor, object).flat if isinstance(item, str | bytes)), "")
        return f"text: {text!r}"
    if array.dtype.kind == "O":
        kinds = {"None" if item is None else type(item).__name__ for item in array.flat} - {"int", "float", "bool"}
        return " and ".join(sorted(kinds)) or "integers of more than 64 bits"
    return f"the dtype {array.dtype}"


def _mask(name: str, lists: Any) -> np.ndarray:
    """A mask from nested lists: booleans, or float64 numbers to add to the scores."""
    items = np.asarray(lists, object)
    kinds = set(map(type, items.flat))
    if kinds <= {int, float, type(None)}:
        numbers = [-np.inf if item is None else item for item in items.flat]
        return np.asarray(numbers, np.float64).reshape(items.shape)
    if bool in kinds and len(kinds) > 1:
        raise TypeError(f"{name}: expected either booleans or numbers, got both")
    return np.asarray(lists)


def scalar(name: str, array: np.ndarray) -> bool | int | float:
    """The number or boolean in an array of rank 0.

    Raises:
        ValueError: the number is NaN or infinite, which JSON cannot express.
    """
    value: bool | int | float = array.item()
    if isinstance(value, float) and not np.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {value}")
    return value
