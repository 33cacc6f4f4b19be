"""Requests to the V2 API with its binary extension: tensors as bytes in both directions, for large tensors.

V2 takes tensors of full rank and of the declared dtypes, and options as parameters. ``prepare`` decides whether a call
can be sent this way.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heed_client import selection
from heed_client.arrays import scalar
from heed_client.block import Block, Dim, Tensor
from heed_client.v2 import Piece, binary_request, datatype

DTYPES = {datatype(np.dtype(name)): np.dtype(name).newbyteorder("<") for name in (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)}  # fmt: skip
OPTIONAL_AXES = ("batch", "heads")  # axes that an input may omit; heads are omitted first
SAME_AXIS = {"kv_heads": "heads"}  # an axis that is omitted together with another


class BinaryRequest:
    """A call as a V2 request; ``number_count`` estimates the numbers in its inputs and outputs."""

    def __init__(
        self, block: Block, tensors: Mapping[str, np.ndarray], parameters: Mapping[str, Any], omitted: set[str],
        outputs: Sequence[str], options: Mapping[str, Any], quantized: bool,
    ) -> None:  # fmt: skip
        self.block = block
        self._tensors = tensors
        self._parameters = parameters
        self._omitted = omitted
        self._outputs = outputs
        self._options = options
        self._quantized = quantized
        sizes: dict[Dim, int] = {}
        for name, array in tensors.items():
            for dim, length in zip(block.inputs[name].shape, array.shape, strict=True):
                sizes[dim] = max(length, sizes.get(dim, 1))
        self.number_count = sum(array.size for array in tensors.values())
        self.number_count += sum(_size(selection.find(block, name).shape, sizes) for name in outputs)

    def encode(self) -> tuple[dict[str, str], list[Piece]]:
        """The headers, and the body in pieces."""
        parameters = {**self._parameters, **selection.parameters(self._options)}
        return binary_request(self._tensors, self._outputs, parameters)

    def decode(self, content: bytes, json_bytes: int) -> dict[str, Any]:
        """The outputs in a response whose JSON has ``json_bytes`` bytes, without the axes that the inputs omit."""
        offset = json_bytes
        arrays = {}
        for output in json.loads(content[:json_bytes])["outputs"]:
            name, dtype = output["name"], DTYPES[output["datatype"]]
            array = np.frombuffer(content, dtype, output["parameters"]["binary_data_size"] // dtype.itemsize, offset)
            offset += array.nbytes
            arrays[name] = array.reshape(self._shape(name, output["shape"])).copy()  # own memory, aligned and writable
        return selection.assembled(arrays, self._outputs, self._quantized)

    def _shape(self, name: str, shape: Sequence[int]) -> list[int]:
        if name.endswith(selection.SCALE):
            return list(shape)
        spec = selection.find(self.block, name)
        omitted = _omitted_axes(self.block, spec, self._omitted)
        axes = selection.kept_axes(self.block, spec, self._options)
        return [length for axis, length in zip(axes, shape, strict=True) if axis not in omitted]


def prepare(
    block: Block,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    options: Mapping[str, Any],
    quantized: bool = False,
) -> BinaryRequest | None:
    """The call as a V2 request; None if V2 would treat it differently from the native API.

    ``options`` become parameters; weights of uint8 become float32, or remain with their scale if ``quantized``.
    """
    if any(name not in block.inputs and name not in block.parameters for name in inputs):
        return None
    if any(spec.dtype.startswith("bfloat16") for spec in block.inputs.values()):  # numpy lacks bfloat16
        return None
    tensors = {name: inputs[name] for name in block.inputs if name in inputs}
    if not tensors or any(name not in block.outputs and name not in block.derived for name in outputs):
        return None
    omitted = _omitted_dims(block, tensors)
    if omitted is None:
        return None
    expanded = {name: _expand(block, block.inputs[name], array, omitted) for name, array in tensors.items()}
    converted = {name: _cast(block.inputs[name], array) for name, array in expanded.items() if array is not None}
    ready = {name: array for name, array in converted.items() if array is not None}
    parameters = {
        name: scalar(name, array) for name, array in inputs.items() if name not in tensors and not array.shape
    }
    if len(ready) + len(parameters) < len(inputs):
        return None
    return BinaryRequest(block, ready, parameters, omitted, outputs, options, quantized)


def _omitted_dims(block: Block, tensors: Mapping[str, np.ndarray]) -> set[str] | None:
    """The leading dimensions that the first tensor, the query, omits: heads first, then batch. None: wrong rank."""
    name, array = next(iter(tensors.items()))
    leading = [str(dim) for dim in block.inputs[name].shape if dim in OPTIONAL_AXES]
    count = len(block.inputs[name].shape) - array.ndim
    return set(leading[len(leading) - count :]) if 0 <= count <= len(leading) else None


def _omitted_axes(block: Block, spec: Tensor, omitted: set[str]) -> set[int]:
    """The axes of ``spec`` that the request omits. In a block of one head, that head's axis goes with the batch's."""
    axes = {axis for axis, dim in enumerate(spec.shape) if SAME_AXIS.get(str(dim), dim) in omitted}
    return axes | {axis + 1 for axis in axes if spec.shape[axis] == "batch" and _is_one_head(block, spec, axis + 1)}


def _is_one_head(block: Block, spec: Tensor, axis: int) -> bool:
    return spec.shape[axis : axis + 1] == (1,) and block.outputs["weights"].shape[-3] == 1


def _expand(block: Block, spec: Tensor, array: np.ndarray, omitted: set[str]) -> np.ndarray | None:
    """``array`` at full rank, None if its rank is wrong.

    A mask broadcasts, so it may have fewer axes; the axis of a single head may be present or not.
    """
    axes = _omitted_axes(block, spec, omitted)
    if array.ndim == len(spec.shape) - len(axes) + 1:
        axes -= {axis for axis in axes if spec.shape[axis] == 1}
    missing = len(spec.shape) - len(axes) - array.ndim
    if missing < 0 or (missing and not spec.is_mask):
        return None
    lengths = iter((1,) * missing + array.shape)
    return array.reshape([1 if axis in axes else next(lengths) for axis in range(len(spec.shape))])


def _cast(spec: Tensor, array: np.ndarray) -> np.ndarray | None:
    """``array`` in the declared dtype; None if it would lose more than a float's precision or be rejected."""
    if spec.is_mask and array.dtype == np.bool_:
        return array
    if spec.is_mask and array.dtype.kind != "f":  # the native API's error explains what to send
        return None
    dtype = spec.numpy_dtype
    is_float = dtype.kind == "f"
    if (array.dtype.kind == "b") != (dtype.kind == "b"):
        return None
    if not np.can_cast(array.dtype, dtype, "same_kind" if is_float else "safe"):
        return None
    with np.errstate(over="ignore"):
        result = array.astype(dtype, copy=False)
    if is_float and not (np.isfinite(result) | (spec.is_mask & np.isneginf(result))).all():
        return None
    return result


def _size(shape: Sequence[Dim], sizes: Mapping[Dim, int]) -> int:
    size = 1
    for dim in shape:
        size *= dim if isinstance(dim, int) else sum(sizes.get(term, 0) for term in dim.split(" + ")) or 1
    return size
