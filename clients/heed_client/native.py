"""Requests to the native API: tensors as base64, which preserves every number, including -inf in a mask."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from heed_client.answer import TopK
from heed_client.arrays import scalar
from heed_client.block import Block


def encode(inputs: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> bytes:
    """The request body: tensors and parameters, and ``options`` such as ``outputs`` beside them."""
    return json.dumps({name: _encode(name, array) for name, array in inputs.items()} | dict(options)).encode()


def parse(content: bytes) -> dict[str, Any]:
    """The outputs in a response body, as JSON values."""
    document: dict[str, Any] = json.loads(content)
    del document["block"]
    return document


def decode(outputs: Mapping[str, Any], block: Block) -> dict[str, Any]:
    """The parsed outputs as arrays, in the dtypes that the block declares."""
    return {name: _decode(value, block.outputs[name].numpy_dtype) for name, value in outputs.items()}


def _encode(name: str, array: np.ndarray) -> Any:
    if not array.shape:
        return scalar(name, array)
    text = base64.b64encode(array.tobytes()).decode()
    return {"shape": array.shape, "dtype": array.dtype.name, "base64": text}


def _decode(value: Any, dtype: np.dtype) -> np.ndarray | TopK:
    if isinstance(value, dict):
        return TopK(np.asarray(value["indices"], np.int64), np.asarray(value["values"], dtype))
    array = np.asarray(value, dtype)
    if dtype.kind == "f":
        array[np.isnan(array)] = -np.inf  # the API writes -inf as null; it sends no other number that is not finite
    return array
