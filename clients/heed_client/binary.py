"""A call of the V2 face with its binary extension: bytes in and bytes out, for large tensors.

V2 takes tensors of full rank and of the declared types, and knows neither averages nor the largest weights: ``prepare``
says which calls it can carry.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heed_client.arrays import scalar
from heed_client.block import Block, Dim, Tensor

HEADER = "Inference-Header-Content-Length"
LEADING = ("batch", "heads")  # axes that a request may leave out, the last first
TOGETHER = {"kv_heads": "heads"}  # an axis that is left out where another is
WORDS = {"b": "BOOL", "i": "INT", "u": "UINT", "f": "FP"}


class Call:
    """A call as V2 takes it; ``numbers`` is about how many go and come."""

    def __init__(
        self, block: Block, tensors: Mapping[str, np.ndarray], parameters: Mapping[str, Any], left_out: set[str],
        outputs: Sequence[str],
    ) -> None:  # fmt: skip
        self.block = block
        self._tensors = tensors
        self._parameters = parameters
        self._left_out = left_out
        self._outputs = outputs
        sizes: dict[Dim, int] = {}
        for name, array in tensors.items():
            for dim, length in zip(block.inputs[name].shape, array.shape, strict=True):
                sizes[dim] = max(length, sizes.get(dim, 1))
        self.numbers = sum(array.size for array in tensors.values())
        self.numbers += sum(_size(block.outputs[name].shape, sizes) for name in outputs)

    def build(self) -> tuple[dict[str, str], list[bytes | memoryview]]:
        """The header and the body, in its pieces."""
        inputs = [
            {
                "name": name,
                "datatype": _datatype(array.dtype),
                "shape": array.shape,
                "parameters": {"binary_data_size": array.nbytes},
            }
            for name, array in self._tensors.items()
        ]
        outputs = [{"name": name} for name in self._outputs]
        parameters = {**self._parameters, "binary_data_output": True}
        start = json.dumps({"inputs": inputs, "outputs": outputs, "parameters": parameters}).encode()
        return (
            {HEADER: str(len(start)), "Content-Type": "application/octet-stream"},
            [start, *(array.reshape(-1).view(np.uint8).data for array in self._tensors.values())],
        )

    def read(self, content: bytes, json_length: int) -> dict[str, np.ndarray]:
        """The outputs in an answer, without the axes that the request left out."""
        place = json_length
        found = {}
        for said in json.loads(content[:json_length])["outputs"]:
            of = self.block.outputs[said["name"]]
            array = np.frombuffer(content, of.numpy, said["parameters"]["binary_data_size"] // of.numpy.itemsize, place)
            place += array.nbytes
            axes = [length for dim, length in zip(of.shape, said["shape"], strict=True) if not self._is_out(dim)]
            found[of.name] = array.reshape(axes).copy()  # apart from the others, aligned, and writable
        return found

    def _is_out(self, dim: Dim) -> bool:
        return _is_out(dim, self._left_out)


def prepare(block: Block, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Call | None:
    """The call in V2's terms; None where V2 cannot carry it as the native face would."""
    if any(name not in block.inputs and name not in block.parameters for name in inputs):
        return None
    if any(of.dtype.startswith("bfloat16") for of in block.inputs.values()):  # numpy has no such numbers
        return None
    tensors = {name: inputs[name] for name in block.inputs if name in inputs}
    if not tensors or any(name not in block.outputs for name in outputs):
        return None
    left_out = _left_out(block, tensors)
    if left_out is None:
        return None
    lifted = {name: _lift(block.inputs[name], array, left_out) for name, array in tensors.items()}
    held = {name: _cast(block.inputs[name], array) for name, array in lifted.items() if array is not None}
    cast = {name: array for name, array in held.items() if array is not None}
    parameters = {
        name: scalar(name, array) for name, array in inputs.items() if name not in tensors and not array.shape
    }
    if len(cast) + len(parameters) < len(inputs):
        return None
    return Call(block, cast, parameters, left_out, outputs)


def _left_out(block: Block, tensors: Mapping[str, np.ndarray]) -> set[str] | None:
    """The leading axes that the first tensor, the query, does without: heads first, then batch."""
    name, array = next(iter(tensors.items()))
    leading = [str(dim) for dim in block.inputs[name].shape if dim in LEADING]
    count = len(block.inputs[name].shape) - array.ndim
    return set(leading[len(leading) - count :]) if 0 <= count <= len(leading) else None


def _is_out(dim: Dim, left_out: set[str]) -> bool:
    return TOGETHER.get(str(dim), dim) in left_out


def _lift(of: Tensor, array: np.ndarray, left_out: set[str]) -> np.ndarray | None:
    """``array`` at the full rank; a mask, which broadcasts, may have fewer axes."""
    missing = sum(not _is_out(dim, left_out) for dim in of.shape) - array.ndim
    if missing < 0 or (missing and not of.is_mask):
        return None
    sizes = iter((1,) * missing + array.shape)
    return array.reshape([1 if _is_out(dim, left_out) else next(sizes) for dim in of.shape])


def _cast(of: Tensor, array: np.ndarray) -> np.ndarray | None:
    """``array`` in the declared type, if that loses nothing but a float's last digits, and the server takes it."""
    if of.is_mask and array.dtype == np.bool_:
        return array
    kind = of.numpy.kind
    if (array.dtype.kind == "b") != (kind == "b") or not np.can_cast(
        array.dtype, of.numpy, "same_kind" if kind == "f" else "safe"
    ):
        return None
    with np.errstate(over="ignore"):
        held = array.astype(of.numpy, copy=False)
    if kind == "f" and not (np.isfinite(held) | (of.is_mask & np.isneginf(held))).all():
        return None
    return held


def _datatype(dtype: np.dtype) -> str:
    word = WORDS[dtype.kind]
    return word if word == "BOOL" else f"{word}{8 * dtype.itemsize}"


def _size(shape: Sequence[Dim], sizes: Mapping[Dim, int]) -> int:
    size = 1
    for dim in shape:
        size *= dim if isinstance(dim, int) else sum(sizes.get(term, 0) for term in dim.split(" + ")) or 1
    return size
