"""One input of a V2 request from JSON data, nested or flat."""

from math import prod
from typing import Any

import numpy as np
from simdjson import Array

from service.errors import Invalid, Malformed
from service.json_tensor import MAX_RANK, Reader, cast, minified, word
from service.v2 import texts
from service.v2.datatype import BYTES, Datatype

MOST_OF_NOTHING = 2**48  # elements; what numpy can still write the shape of


def shape(name: str, element: Any, reader: Reader) -> tuple[int, ...]:
    """The shape an input says it has.

    Raises:
        Malformed: no list of whole numbers from 0.
    """
    sizes: tuple[Any, ...] | None = tuple(element) if isinstance(element, Array) else None
    if sizes is None or not all(type(size) is int and 0 <= size < 2**63 for size in sizes):
        said = f"[{', '.join(map(word, sizes))}]" if sizes is not None else word(element)
        raise Malformed(f"input '{name}': expected shape to be a list of whole numbers from 0, got {said}")
    if len(sizes) > MAX_RANK:
        raise Malformed(f"input '{name}': more than {MAX_RANK} dimensions")
    if 0 in sizes and prod(size or 1 for size in sizes) > MOST_OF_NOTHING:
        raise Malformed(f"input '{name}': shape {list(sizes)} is too large, even of nothing")
    reader.brackets += 1
    return sizes


def from_json(name: str, of: Datatype, sizes: tuple[int, ...], data: Any, reader: Reader) -> np.ndarray:
    """The array that JSON ``data`` holds.

    Raises:
        Invalid: ragged, of another count or nesting than the shape, or of elements that ``of`` does not hold.
    """
    if not isinstance(data, Array):
        raise Malformed(f"input '{name}': expected data to be a list, got {word(data)}")
    if prod(sizes) == 0 or len(data) == 0:
        array = _empty(of, data, reader)
    elif of is BYTES:
        array = texts.array(_texts(name, data, reader))
    else:
        array = reader.nested(name, data, of.dtype)
    if array.size != prod(sizes) or (array.ndim > 1 and array.shape != sizes):
        raise Invalid(f"input '{name}': shape does not match true shape of 'data': {list(sizes)}, got {_said(array)}")
    array = array.reshape(sizes)
    return array if of is BYTES else cast(name, array, of.dtype)


def _said(array: np.ndarray) -> str:
    return f"{array.size} elements" if array.ndim == 1 else str(list(array.shape))


def _empty(of: Datatype, data: Array, reader: Reader) -> np.ndarray:
    """No element, however deep the empty lists lie; an element makes it one that no empty shape matches."""
    content = minified(data)
    reader.brackets += content.count(b"[")
    return np.empty(1 if content.strip(b"[],") else 0, of.dtype)


def _texts(name: str, data: Array, reader: Reader) -> list[str]:
    """The strings of nested or flat lists; their count is held to the shape, their nesting need only be of lists."""
    found: list[str] = []
    todo: list[Any] = [data]
    while todo:
        item = todo.pop()
        if isinstance(item, Array):
            reader.brackets += 1
            todo.extend(reversed(list(item)))
        elif isinstance(item, str):
            found.append(item)
        else:
            raise Invalid(f"input '{name}': expected strings, got {word(item)}")
    return found
