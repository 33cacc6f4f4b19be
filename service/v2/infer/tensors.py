"""One input of a V2 request: from JSON data, nested or flat, or from the bytes that follow the JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from service.base.budget import Reservation
from service.base.errors import Invalid, Malformed
from service.base.messages import counted
from service.base.steps import Steps
from service.codec.json_parser import JsonArray, minified
from service.codec.json_reader import JsonReader, describe
from service.codec.json_slices import MAX_RANK, LongList
from service.codec.long_tensor import MAX_CAST_NUMBERS, LongTensor, fill
from service.model.model import Model
from service.tensors.cast import cast
from service.v2.datatypes import (
    BYTES,
    CHARACTER_BYTES,
    MAX_STRINGS,
    STRING_BYTES,
    decode_string,
    string_array,
    unpack_strings,
)
from service.v2.signature import wire_shape

MAX_EMPTY_PRODUCT = 2**48  # of the sizes that are not 0 in an empty shape: numpy can still write such a shape


@dataclass(frozen=True, slots=True)
class BinaryInput:
    """An input in the bytes behind the JSON: ``size`` bytes from ``place`` on.

    Raises:
        Invalid: ``size`` is not that of the shape, or there are too many strings.
    """

    name: str
    model: str
    dtype: np.dtype
    shape: tuple[int, ...]
    place: int
    size: int
    declared: np.dtype  # of the model's input

    def __post_init__(self) -> None:
        if self.dtype == BYTES:
            check_count(self.name, prod(self.shape))
            return
        expected = prod(self.shape) * self.dtype.itemsize
        if self.size != expected:
            raise Invalid(
                f"input byte size mismatch for input '{self.name}' for model '{self.model}'. "
                f"Expected {expected}, got {self.size}"
            )

    def array(self, content: bytes | memoryview) -> np.ndarray:
        """The tensor of numbers, as the model takes it: a view of ``content`` where possible, else a copy."""
        array = np.ndarray(self.shape, self.dtype, content, self.place)
        return array if array.flags.aligned else array.copy()

    @property
    def unpacked_bytes(self) -> int:
        """Upper bound in bytes on its strings or flags once they are unpacked; 0 of numbers."""
        if self.dtype == BYTES:
            return self.size * CHARACTER_BYTES + (prod(self.shape) + 1) * STRING_BYTES
        return self.size * self.declared.itemsize if is_packed(self.dtype) else 0

    def unpack(self, content: bytes | memoryview) -> Steps[np.ndarray]:
        """The tensor of strings or flags, as the model takes it.

        Raises:
            Invalid: strings that are more or fewer than the shape has, too long, or no UTF-8.
        """
        packed = memoryview(content)[self.place : self.place + self.size]
        if self.dtype == BYTES:
            return (yield from unpack_strings(self.name, packed, prod(self.shape))).reshape(self.shape)
        flags = np.frombuffer(packed, np.uint8)
        starts = range(0, flags.size, MAX_CAST_NUMBERS)
        parts = (flags[start : start + MAX_CAST_NUMBERS].astype(np.bool_) for start in starts)
        return (yield from fill(self.name, parts, self.shape, self.declared, mask=self.declared.kind != "b"))


def is_packed(dtype: np.dtype) -> bool:
    """Whether the bytes of a tensor are not those of its array: of strings, and of flags, which may be any byte."""
    return dtype == BYTES or dtype.kind == "b"


def check_count(name: str, count: int) -> None:
    """Check the number of strings of an input.

    Raises:
        Invalid: there are too many.
    """
    if count > MAX_STRINGS:
        raise Invalid(f"input '{name}': expected at most {MAX_STRINGS} strings; send fewer rows in a request")


def check_length(inputs: Sequence[BinaryInput], length: int, model: str) -> None:
    """Check that the inputs take all of the ``length`` bytes behind the JSON, and no more.

    Raises:
        Malformed: they take more, or fewer.
    """
    for binary in inputs:
        missing = binary.place + binary.size - length
        if missing > 0:
            raise Malformed(
                f"unexpected size for input '{binary.name}', expecting {missing} additional bytes for model '{model}'"
            )
    left = length - sum(binary.size for binary in inputs)
    if left:
        raise Malformed(f"unexpected additional input data for model '{model}': {counted(left, 'byte')}")


def from_raw(body: bytes | memoryview, model: Model, reservation: Reservation) -> Steps[dict[str, np.ndarray]]:
    """The one input of a raw binary request: the whole body, as a batch of one; its length gives the shape.

    Raises:
        Malformed: the model has several inputs, or one with several free dimensions.
        Invalid: the length fits no shape, or the body is no string.
        TooMuchMemory, Overloaded: there is no room for the string.
    """
    required = [name for name, spec in model.inputs.items() if spec.required] or list(model.inputs)
    if len(required) != 1:
        raise Malformed(f"a raw request needs a model with one input; '{model.name}' has {required}")
    (name,) = required
    dtype = model.inputs[name].dtype
    sizes = wire_shape(model.inputs[name])
    if model.max_batch_size:
        sizes[0] = 1
    if dtype == BYTES:
        if any(abs(size) != 1 for size in sizes):
            raise Malformed(f"a raw request of BYTES needs an input of shape [1]; '{name}' has {sizes}")
        reservation.add(len(body) * CHARACTER_BYTES)
        return {name: string_array([decode_string(name, memoryview(body))]).reshape([1] * len(sizes))}
    if sizes.count(-1) > 1:
        raise Malformed(f"a raw request needs an input with at most one free dimension; '{name}' has {sizes}")
    row_bytes = dtype.itemsize * prod(size for size in sizes if size != -1)
    if -1 in sizes:
        sizes[sizes.index(-1)] = len(body) // row_bytes if row_bytes else 0
    binary = BinaryInput(name, model.name, dtype, tuple(sizes), 0, len(body), dtype)
    reservation.add(binary.unpacked_bytes)
    return {name: (yield from binary.unpack(body)) if is_packed(dtype) else binary.array(body)}


def read_shape(name: str, element: Any, reader: JsonReader) -> tuple[int, ...]:
    """The shape that an input declares.

    Raises:
        Malformed: no list of whole numbers from 0.
    """
    if isinstance(element, JsonArray) and len(element) > MAX_RANK:
        raise Malformed(f"input '{name}': more than {MAX_RANK} dimensions")
    sizes: tuple[Any, ...] | None = tuple(element) if isinstance(element, JsonArray) else None
    if sizes is None or not all(type(size) is int and 0 <= size < 2**63 for size in sizes):
        got = f"[{', '.join(map(describe, sizes))}]" if sizes is not None else describe(reader.part(element))
        raise Malformed(f"input '{name}': expected shape to be a list of whole numbers from 0, got {got}")
    if 0 in sizes and prod(size or 1 for size in sizes) > MAX_EMPTY_PRODUCT:
        raise Malformed(f"input '{name}': shape {list(sizes)} is too large")
    reader.brackets += 1
    return sizes


def from_json(
    name: str, dtype: np.dtype, sizes: tuple[int, ...], data: Any, reader: JsonReader, nulls: bool
) -> np.ndarray | LongTensor:
    """The array of JSON ``data``, or the long list that is still to be read as one; null is -infinity if ``nulls``.

    Raises:
        Invalid: ragged, of another count or nesting than the shape, or of elements that are not of this datatype.
    """
    data = reader.part(data)
    if isinstance(data, LongList) and dtype != BYTES:
        return LongTensor(name, data, dtype, nulls)
    if not isinstance(data, JsonArray):
        raise Malformed(f"input '{name}': expected data to be a list, got {describe(data)}")
    if prod(sizes) == 0 or len(data) == 0:
        array = _empty(dtype, data, reader)
    elif dtype == BYTES:
        array = string_array(_texts(name, data, reader))
    else:
        array = reader.nested(name, data, dtype, nulls=nulls)
    array = fit(name, array, sizes)
    return array if dtype == BYTES else cast(name, array, dtype, nulls)


def fit(name: str, array: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """``array`` in the shape that its input declares.

    Raises:
        Invalid: it is of another count or nesting.
    """
    if array.size != prod(sizes) or (array.ndim > 1 and array.shape != sizes):
        got = counted(array.size, "element") if array.ndim == 1 else str(list(array.shape))
        raise Invalid(f"input '{name}': shape does not match true shape of 'data': {list(sizes)}, got {got}")
    return array.reshape(sizes)


def _empty(dtype: np.dtype, data: JsonArray, reader: JsonReader) -> np.ndarray:
    """No element, however deep the empty lists lie; an element makes it one that no empty shape matches."""
    content = minified(data)
    reader.brackets += content.count(b"[")
    return np.empty(1 if content.strip(b"[],") else 0, dtype)


def _texts(name: str, data: JsonArray, reader: JsonReader) -> list[str]:
    """The strings of nested or flat lists; their count is checked against the shape, their nesting is not."""
    strings: list[str] = []
    stack: list[Any] = [data]
    while stack:
        item = stack.pop()
        if isinstance(item, JsonArray):
            check_count(name, len(stack) + len(strings) + len(item))
            reader.brackets += 1
            stack.extend(reversed(list(item)))
        elif isinstance(item, str):
            strings.append(item)
        else:
            raise Invalid(f"input '{name}': expected strings, got {describe(item)}")
    return strings
