"""Requests that store or append keys and values: JSON, followed by the numbers as bytes."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from heed_client import native
from heed_client.arrays import TensorLike, array
from heed_client.v2 import HEADER, Piece

BINARY_DTYPES = ("float32", "float16")  # that the server accepts as bytes after the JSON
KEY_VALUE, LENGTHS = ("key", "value"), "nonpad_kv_seqlen"
AXES = {2: (1, 1), 3: (-1, 1), 4: (-1, -1)}  # batch and kv_heads by rank; -1: given


def to_arrays(tensors: Mapping[str, TensorLike], dtype: str) -> dict[str, np.ndarray]:
    """The tensors that are given, floats in ``dtype``; keys and values become floats.

    Raises:
        ValueError, TypeError: one is not an array of numbers; the message begins with its name.
    """
    arrays = {name: array(name, tensor) for name, tensor in tensors.items() if tensor is not None}
    with np.errstate(over="ignore"):  # the server says which tensor has an infinity
        return {
            name: array.astype(dtype, copy=False) if array.dtype.kind == "f" or name in KEY_VALUE else array
            for name, array in arrays.items()
        }


def encode(arrays: Mapping[str, np.ndarray], fields: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of a request with these tensors and other fields."""
    given = {name: value for name, value in fields.items() if value is not None}
    document = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in given.items()}
    pieces: list[Piece] = []
    for name, numbers in arrays.items():
        if numbers.dtype.name in BINARY_DTYPES:
            content = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data
            document[name] = {"shape": numbers.shape, "dtype": numbers.dtype.name, "binary_data_size": content.nbytes}
            pieces.append(content)
        else:
            document[name] = native.encode_tensor(name, numbers)
    head = json.dumps(document, separators=(",", ":")).encode()
    return b"".join([head, *pieces]), {HEADER: str(len(head)), "Content-Type": "application/octet-stream"}


def are_keys_and_values(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether these are a key [batch, kv_heads, n, d_k], or its last 2 or 3 dimensions, and a value for each key."""
    if arrays.keys() != {*KEY_VALUE}:
        return False
    key, value = (arrays[name] for name in KEY_VALUE)
    return key.ndim in AXES and key.shape[:-1] == value.shape[:-1]


def content_hash(arrays: Mapping[str, np.ndarray], lengths: np.ndarray | None) -> str:
    """SHA-256 by which the server finds equal keys and values, as hexadecimal digits.

    It covers a line of JSON (null for the block; dtype; the shapes of key and value at full rank; the number of keys
    of each row), followed by the bytes of both.
    """
    key = arrays["key"]
    *lead, n = [{-1: key.shape[i]}.get(axis, axis) for i, axis in enumerate(AXES[key.ndim])] + [key.shape[-2]]
    shapes = [[*lead, n, arrays[name].shape[-1]] for name in KEY_VALUE]
    counts = [n] * lead[0] if lengths is None else lengths.tolist()
    head = json.dumps([None, key.dtype.name, *shapes, counts], separators=(",", ":"))
    digest = hashlib.sha256(f"{head}\n".encode())
    for name in KEY_VALUE:
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
