"""A call of the native face: tensors as base64, so that every number arrives as it is, -inf in a mask too."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from heed_client.answer import Largest
from heed_client.arrays import scalar
from heed_client.block import Block


def build(inputs: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> bytes:
    """The body for tensors and parameters, beside fields that are no input (``outputs``, say)."""
    return json.dumps({name: _written(name, array) for name, array in inputs.items()} | dict(options)).encode()


def said(content: bytes) -> dict[str, Any]:
    """The outputs in an answer, as JSON says them."""
    found: dict[str, Any] = json.loads(content)
    del found["block"]
    return found


def read(said: Mapping[str, Any], block: Block) -> dict[str, Any]:
    """The same, in the types that the block declares."""
    return {name: _read(value, block.outputs[name].numpy) for name, value in said.items()}


def _written(name: str, array: np.ndarray) -> Any:
    if not array.shape:
        return scalar(name, array)
    text = base64.b64encode(array.tobytes()).decode()
    return {"shape": array.shape, "dtype": array.dtype.name, "base64": text}


def _read(value: Any, dtype: np.dtype) -> np.ndarray | Largest:
    if isinstance(value, dict):
        return Largest(np.asarray(value["indices"], np.int64), np.asarray(value["values"], dtype))
    array = np.asarray(value, dtype)
    if dtype.kind == "f":
        array[np.isnan(array)] = -np.inf  # null; nothing else is not finite
    return array
