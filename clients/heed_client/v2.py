"""Requests of the Open Inference Protocol (V2) with its binary data extension: tensors are bytes after the JSON.

Source: github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

HEADER = "Inference-Header-Content-Length"
KINDS = {"b": "BOOL", "i": "INT", "u": "UINT", "f": "FP"}

Piece = bytes | memoryview


def datatype(dtype: np.dtype) -> str:
    """The protocol's name of a numpy dtype of numbers or booleans: ``FP32`` for float32.

    Raises:
        KeyError: the dtype is neither numeric nor boolean.
    """
    kind = KINDS[dtype.kind]
    return kind if kind == "BOOL" else f"{kind}{8 * dtype.itemsize}"


def binary_request(
    tensors: Mapping[str, np.ndarray],
    outputs: Sequence[str | Mapping[str, Any]] = (),
    parameters: Mapping[str, Any] | None = None,
    datatypes: Mapping[str, str] | None = None,
    **fields: Any,
) -> tuple[dict[str, str], list[Piece]]:
    """The headers, and the body in pieces, of a request for binary outputs.

    ``outputs`` are names of outputs, or the protocol's own objects; by default the model returns all of them.
    ``parameters`` are those of the request, and other ``fields`` (``id``) are written beside them. ``datatypes`` names
    the datatype of inputs whose dtype numpy lacks, such as ``BF16``.

    Raises:
        KeyError: a tensor is neither numeric nor boolean.
    """
    names = datatypes or {}
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()}
    inputs = [
        {
            "name": name,
            "datatype": names.get(name) or datatype(array.dtype),
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    document: dict[str, Any] = {"inputs": inputs, **fields}
    if outputs:
        document["outputs"] = [
            {"name": output, "parameters": {"binary_data": True}} if isinstance(output, str) else output
            for output in outputs
        ]
    if parameters := dict(parameters or {}) | ({} if outputs else {"binary_data_output": True}):
        document["parameters"] = parameters
    content = json.dumps(document, separators=(",", ":")).encode()
    headers = {HEADER: str(len(content)), "Content-Type": "application/octet-stream"}
    return headers, [content, *(array.reshape(-1).view(np.uint8).data for array in arrays.values())]
