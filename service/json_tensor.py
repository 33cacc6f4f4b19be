"""JSON to arrays without a Python list between: nested numbers, ``{"shape", "data"}``, or base64 bytes.

simdjson flattens a nested array into a buffer at once, but does not notice ragged rows; the rows are counted here.
"""

import binascii
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from simdjson import Array, Object

from service.errors import Invalid, Malformed
from service.json_document import flat as numbers_of
from service.model import Tensor

MAX_RANK = 16
WORDS = {type(None): "null", bool: "a boolean", str: "text", Object: "an object", Array: "a list"}
INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
NUMERIC = {"bool", "float16", "float32", "float64", *INTEGERS}


class Reader:
    """Reads the tensors of one document, and proves at the end that no row of numbers hid a list in it."""

    def __init__(self) -> None:
        self.brackets = 0  # "[" that what was read so far accounts for
        self._read: list[tuple[str, Array, int]] = []  # with the "[" each accounts for

    def tensor(self, of: Tensor, element: Any, mask: bool = False) -> np.ndarray:
        """The array of ``element`` in the type that ``of`` declares; a ``mask`` may be booleans or hold -inf.

        Raises:
            Malformed: an object with fields that are no tensor's.
            Invalid: ragged rows, a wrong type, NaN, or a shape that does not match.
        """
        if of.shape == () or (of.dtype.kind == "i" and isinstance(element, int)):
            array = scalar(of.name, element, of.dtype)
        elif isinstance(element, Object):
            array = self._object(of.name, element, mask)
        elif isinstance(element, Array):
            array = self.nested(of.name, element, of.dtype, mask)
        else:
            raise Invalid(f"expected a list of numbers, got {word(element)}", of.name)
        return cast(of.name, array, of.dtype, mask)

    def integers(self, name: str, element: Any) -> list[int]:
        """A flat list of whole numbers, such as a shape."""
        if not isinstance(element, Array):
            raise Invalid(f"expected a list of whole numbers, got {word(element)}", name)
        return self.nested(name, element, np.dtype(np.int64), False).reshape(-1).tolist()

    def texts(self, name: str, element: Any) -> list[str]:
        """A flat list of strings."""
        texts = [item for item in element if isinstance(item, str)] if isinstance(element, Array) else []
        if not isinstance(element, Array) or len(texts) != len(element):
            raise Invalid("expected a list of names", name)
        self.brackets += 1
        return texts

    def finish(self, body: bytes | memoryview, strict: bool = True) -> None:
        """Hold the lists counted against those in ``body``: ``[1, [2]]`` flattens to the same numbers as ``[1, 2]``.

        Where other fields may hold lists or texts with "[" in them (not ``strict``), a surplus is looked for in the
        tensors themselves.

        Raises:
            Invalid: a list stands where a number should.
        """
        if _count(body, "[") != self.brackets:
            for name, array, brackets in self._read:
                if minified(array).count(b"[") != brackets:
                    _blame(name, array, lambda item: not isinstance(item, Array), "numbers")
            if strict:
                raise Malformed("a list stands where none is expected")

    def nested(self, name: str, rows: Array, dtype: np.dtype, mask: bool = False) -> np.ndarray:
        """The numbers or booleans of nested lists, as the widest type of ``dtype``'s kind."""
        before = self.brackets
        level: list[Any] = [rows]
        shape: list[int] = []
        while True:
            lengths = _lengths(level)
            if len(lengths) != 1:
                raise Invalid(f"rows of different lengths at depth {len(shape)}", name)
            self.brackets += len(level)
            shape.append(lengths.pop())
            if shape[-1] == 0:
                raise Invalid("empty; every dimension is at least 1", name)
            if len(shape) > MAX_RANK:
                raise Invalid(f"nested more than {MAX_RANK} deep", name)
            first = level[0][0]
            if not isinstance(first, Array):
                break
            level = [*chain.from_iterable(level)]
        self._read.append((name, rows, self.brackets - before))
        if isinstance(first, bool) and (mask or dtype.kind == "b"):
            flat = _booleans(name, rows)
        else:
            flat = _numbers(name, rows, dtype.kind if dtype.kind in "iu" else "f")
        if flat.size != prod(shape):
            raise Invalid(f"rows of different lengths at depth {len(shape)}", name)
        return flat.reshape(shape)

    def _object(self, name: str, element: Object, mask: bool) -> np.ndarray:
        fields = sorted(element)
        if fields not in (["data", "shape"], ["base64", "dtype", "shape"]):
            raise Malformed(f'expected "shape" and "data", or "shape", "dtype" and "base64", got {fields}', name)
        shape = self.integers(name, element["shape"])
        if any(axis < 0 for axis in shape):
            raise Invalid(f"shape {shape} has a negative dimension", name)
        if "data" in fields:
            data = element["data"]
            if not isinstance(data, Array):
                raise Invalid(f"expected data to be a list of numbers, got {word(data)}", name)
            array = self.nested(name, data, np.dtype(np.float64), mask)
            if array.ndim > 1 and list(array.shape) != shape:
                raise Invalid(f"shape {shape} was said, but data is nested as {list(array.shape)}", name)
        else:
            array = _bytes(name, element["dtype"], element["base64"])
        if array.size != prod(shape):
            raise Invalid(f"shape {shape} needs {prod(shape)} numbers, got {array.size}", name)
        return array.reshape(shape)


def cast(name: str, array: np.ndarray, dtype: np.dtype, mask: bool = False) -> np.ndarray:
    """``array`` as ``dtype``, without losing what it says. To be called where numpy does not warn of overflow.

    Raises:
        Invalid: fractions for integers, numbers for booleans, NaN, infinity, or a number ``dtype`` cannot hold.
    """
    if mask and array.dtype == np.bool_:
        return np.where(array, 0, -np.inf).astype(dtype)
    if (array.dtype.kind == "b") != (dtype.kind == "b"):
        raise Invalid(f"expected {_kind(dtype)}, got {_kind(array.dtype)}", name)
    if dtype.kind in "iu":
        whole = array if array.dtype.kind in "iu" else array.astype(np.int64)
        if whole is not array and (whole != array).any():
            raise Invalid("expected whole numbers, got fractions", name)
        held = whole.astype(dtype, copy=False)
        if held.dtype != whole.dtype and ((held != whole).any() or ((held < 0) != (whole < 0)).any()):
            raise Invalid(f"holds a number past the range of {dtype}", name)
        return held
    held = array.astype(dtype, copy=False)
    if dtype.kind == "f" and not is_finite(held):
        if np.isnan(held).any():
            raise Invalid("holds NaN", name)
        if not mask or np.isposinf(held).any():
            raise Invalid(f"holds infinity, or a number past the range of {dtype}", name)
    return held


def is_finite(array: np.ndarray) -> bool:
    """No number in it is NaN or infinite."""
    return bool(np.count_nonzero(np.isfinite(array)) == array.size)  # several times quicker than all() on small arrays


def _lengths(rows: Sequence[Any]) -> set[int]:
    """The different lengths of ``rows``; none of them where one is no list. Texts and objects are found out later."""
    try:
        return set(map(len, rows))
    except TypeError:  # a number
        return set()


def _numbers(name: str, rows: Array, kind: str) -> np.ndarray:
    try:
        return numbers_of(rows, kind)
    except (TypeError, ValueError):
        if kind != "f":
            _blame(name, rows, lambda item: type(item) is int, "whole numbers")
        _blame(name, rows, lambda item: type(item) in (int, float), "numbers")
        raise Invalid(f"a number does not fit in {'uint64' if kind == 'u' else 'int64'}", name) from None


def _booleans(name: str, rows: Array) -> np.ndarray:
    """Of JSON's words only "true" holds a t and only "false" an f: their places are the values; text is refused."""
    text = np.frombuffer(minified(rows), np.uint8)
    true, false = text == ord("t"), text == ord("f")
    flat: np.ndarray = true[true | false]
    values = np.count_nonzero(text == ord(",")) + 1
    if flat.size != values or (text == ord('"')).any() or (text == ord("{")).any():
        _blame(name, rows, lambda item: isinstance(item, bool), "booleans")
    return flat


def minified(array: Array) -> bytes:
    """The JSON of an array, without blanks."""
    return array.mini  # type: ignore[return-value]  # bytes, whatever simdjson's stub says


def _count(text: bytes | memoryview, character: str) -> int:
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord(character)))


def scalar(name: str, element: Any, dtype: np.dtype) -> np.ndarray:
    """One number or flag, as numpy takes it."""
    allowed = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}[dtype.kind]
    if type(element) not in allowed:
        raise Invalid(f"expected {_kind(dtype, one=True)}, got {word(element)}", name)
    if dtype.kind in "iu" and not -(2**63) <= element < 2**63 + (2**63 if dtype.kind == "u" else 0):
        raise Invalid(f"{element} does not fit in {dtype}", name)
    return np.asarray(element)


def _bytes(name: str, dtype: Any, text: Any) -> np.ndarray:
    if dtype not in NUMERIC:
        raise Invalid(f"expected dtype to be one of {', '.join(sorted(NUMERIC))}, got {dtype!r}", name)
    try:
        if not isinstance(text, str):
            raise ValueError
        data = binascii.a2b_base64(text.encode(), strict_mode=True)
    except ValueError:
        raise Invalid("base64 is not base64", name) from None
    of = np.dtype(dtype).newbyteorder("<")
    if len(data) % of.itemsize:
        raise Invalid(f"base64 holds {len(data)} bytes, no multiple of {of.itemsize} ({dtype})", name)
    return np.frombuffer(data, of)


def _blame(name: str, array: Array, fits: Callable[[Any], bool], expected: str) -> None:
    """Name the first element that is none of ``expected``, and where it stands."""
    todo: deque[tuple[Sequence[int], Array]] = deque([((), array)])
    while todo:
        place, rows = todo.popleft()
        lists = [((*place, index), item) for index, item in enumerate(rows) if isinstance(item, Array)]
        others = [((*place, index), item) for index, item in enumerate(rows) if not isinstance(item, Array)]
        if not others:
            todo.extend(lists)
            continue
        for at, item in (*others, *lists):
            if not fits(item):
                raise Invalid(f"expected {expected}, got {word(item)} at {[*at]}", name)


def _kind(dtype: np.dtype, one: bool = False) -> str:
    words = {"b": "booleans", "i": "whole numbers", "u": "whole numbers"}.get(dtype.kind, "numbers")
    return f"a {words[:-1]}" if one else words


def word(element: Any) -> str:
    return WORDS.get(type(element), str(element))
