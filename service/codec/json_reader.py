"""JSON to arrays without Python lists: nested numbers, ``{"shape", "data"}``, or base64 bytes.

simdjson flattens a nested array into a buffer, but does not notice rows of different lengths; rows are counted here.
"""

import binascii
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, islice
from math import prod
from typing import Any

import numpy as np
import orjson

from service.base.errors import Invalid, Malformed
from service.base.messages import shortened
from service.codec.json_parser import JsonArray, JsonObject, minified, parse_numbers
from service.codec.json_parser import flat as numbers_of
from service.codec.json_slices import MAX_RANK, MAX_ROWS, LongList, LongText, part
from service.codec.long_tensor import NOT_BASE64, LongTensor
from service.tensors.cast import cast, check_shape, from_bytes, kind_words
from service.tensors.spec import TensorSpec

MAX_QUOTED_BYTES = 60  # of a text that an error repeats
MAX_NAMES = 64  # in a list of names, such as outputs
MAX_ITEM_BYTES = 24  # of an element of a list of options, with blanks
MAX_TEXT_BYTES = 6 << 14  # of a text of indices, as JSON
MAX_CHECKED = 20_000  # elements that are searched for the wrong one; some milliseconds
WORDS: dict[type, str] = {
    **{type(None): "null", bool: "a boolean", LongText: "text"},
    **dict.fromkeys((JsonObject, dict), "an object"),
    **dict.fromkeys((JsonArray, list, LongList), "a list"),
}
INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
NUMERIC = {"bool", "bfloat16", "float16", "float32", "float64", *INTEGERS}


class JsonReader:
    """Reads the tensors of one document, and checks at the end that no list stood in place of a number."""

    def __init__(self, parts: Sequence[LongText | LongList] = ()) -> None:
        self._parts = parts
        self.brackets = 0  # "[" of all that was read so far
        self._read: list[tuple[str, JsonArray, Sequence[int], int]] = []  # with its shape and the count of its "["

    def part(self, element: Any) -> Any:
        """The long text or list for which ``element`` is the placeholder, else ``element`` itself."""
        return part(element, self._parts)

    def tensor(self, spec: TensorSpec, element: Any, mask: bool = False) -> np.ndarray | LongTensor:
        """The array of ``element`` in the type of ``spec``; a ``mask`` may have booleans, or null for -infinity.

        The result is a ``LongTensor`` where its text is long.

        Raises:
            Malformed: an object with fields that are no tensor's.
            Invalid: ragged rows, a wrong type, NaN, or a shape that does not match.
        """
        element = self.part(element)
        array: np.ndarray | LongTensor
        is_row = spec.dtype.kind == "i" or len(spec.shape) == 1  # a number, where a query omits its axes
        if spec.shape == () or (is_row and isinstance(element, int | float)):
            array = scalar(spec.name, element, spec.dtype)
        elif isinstance(element, LongList):
            array = LongTensor(spec.name, element, spec.dtype, mask)
        elif isinstance(element, JsonObject):
            array = self._object(spec, element, mask)
        elif isinstance(element, JsonArray):
            array = self.nested(spec.name, element, spec.dtype, booleans=mask, nulls=mask)
        else:
            raise Invalid(f"expected a list of numbers, got {describe(element)}", spec.name)
        return array if isinstance(array, LongTensor) else cast(spec.name, array, spec.dtype, mask)

    def resolved(self, fields: dict[str, Any]) -> dict[str, Any]:
        """``fields`` with the parts that were cut out of the document in place of their placeholders."""
        return {name: self.part(value) for name, value in fields.items()} if self._parts else fields

    def items(self, name: str, element: Any, most: int) -> Any:
        """The elements of a flat list of at most ``most``, or a text, also if it was cut out; any other value as it is.

        Raises:
            Invalid: it is longer, or not JSON.
        """
        value = self.part(element)
        if isinstance(value, LongText):
            if len(value.content) > MAX_TEXT_BYTES:
                raise Invalid(f"expected a text of at most {MAX_TEXT_BYTES:,} bytes", name)
            try:
                return value.text()
            except ValueError:
                raise Invalid("expected text with JSON's escape sequences", name) from None
        if isinstance(value, LongList) and len(value.content) <= most * MAX_ITEM_BYTES:
            try:
                items = orjson.loads(value.content)
            except orjson.JSONDecodeError:
                raise Invalid("expected a list", name) from None
            if len(items) <= most:
                return items
        if isinstance(value, JsonArray) and len(value) <= most:
            self.brackets += 1
            return [*value]
        if isinstance(value, LongList | JsonArray):
            raise Invalid(f"expected a list of at most {most:,} elements", name)
        return value

    def integers(self, name: str, element: Any) -> list[int]:
        """A flat list of whole numbers from 0: a shape."""
        if not isinstance(element, JsonArray):
            raise Invalid(f"expected a list of whole numbers, got {describe(self.part(element))}", name)
        if len(element) > MAX_RANK:
            raise Invalid(f"expected a shape of at most {MAX_RANK} axes, got {len(element)}", name)
        shape: list[int] = self.nested(name, element, np.dtype(np.int64)).reshape(-1).tolist()
        if any(axis < 0 for axis in shape):
            raise Invalid(f"shape {shape} has a negative size", name)
        return shape

    def texts(self, name: str, element: Any) -> list[str]:
        """A flat list of strings."""
        if not isinstance(element, JsonArray):
            raise Invalid(f'expected a list of names, such as ["output"], got {describe(self.part(element))}', name)
        if len(element) > MAX_NAMES:
            raise Invalid(f"expected a list of at most {MAX_NAMES} names, got {len(element)}", name)
        texts = [item for item in element if isinstance(item, str)]
        if len(texts) != len(element):
            other = next(item for item in element if not isinstance(item, str))
            raise Invalid(f"expected only names in the list, got {describe(other)}", name)
        self.brackets += 1
        return texts

    def finish(self, body: bytes | memoryview, strict: bool = True) -> None:
        """Compare the count of lists with that in ``body``: ``[1, [2]]`` flattens to the same numbers as ``[1, 2]``.

        Without ``strict``, other fields may have lists, or texts with "["; then each tensor is compared by itself.

        Raises:
            Invalid: a list stands where a number should.
        """
        if _count(body, "[") != self.brackets:
            for name, rows, shape, brackets in self._read:
                if minified(rows).count(b"[") != brackets:
                    _raise_first_invalid(name, rows, shape, lambda item: not isinstance(item, JsonArray), "numbers")
            if strict:
                raise Malformed("unexpected list in place of a single value")

    def nested(
        self, name: str, rows: JsonArray, dtype: np.dtype, booleans: bool = False, nulls: bool = False
    ) -> np.ndarray:
        """The numbers of nested lists, as the widest type of ``dtype``'s kind.

        They may be ``booleans`` instead; of floats null may stand for -infinity (``nulls``).
        """
        before = self.brackets
        level: list[Any] = [rows]
        shape: list[int] = []
        while True:
            lengths = _lengths(level)
            if len(lengths) != 1:
                raise Invalid(f"rows of different lengths at depth {len(shape)}: {_odd_row(level, shape)}", name)
            self.brackets += len(level)
            shape.append(lengths.pop())
            if shape[-1] == 0:
                raise Invalid("empty; every axis must have at least one element", name)
            if len(shape) > MAX_RANK:
                raise Invalid(f"nested more than {MAX_RANK} levels deep", name)
            first = level[0][0]
            if not isinstance(first, JsonArray):
                break
            if len(level) * shape[-1] > 4 * MAX_ROWS:  # a longer list of numbers alone would have been cut out
                raise Invalid("expected a list of only numbers", name)
            level = [*chain.from_iterable(level)]
        self._read.append((name, rows, shape, self.brackets - before))
        if isinstance(first, bool) and (booleans or dtype.kind == "b"):
            flat = _booleans(name, rows, shape)
        else:
            flat = _numbers(name, rows, shape, dtype.kind if dtype.kind in "iu" else "f", nulls)
        if flat.size != prod(shape):
            raise Invalid(f"rows of different lengths at depth {len(shape)}", name)
        return flat.reshape(shape)

    def _object(self, spec: TensorSpec, element: JsonObject, mask: bool) -> np.ndarray | LongTensor:
        name = spec.name
        fields = sorted(islice(element, 4))  # one more than there may be
        if fields not in (["data", "shape"], ["base64", "dtype", "shape"]):
            raise Malformed(f'expected "shape" and "data", or "shape", "dtype" and "base64", got {fields}', name)
        shape = self.integers(name, element["shape"])
        if "data" in fields:
            data = self.part(element["data"])
            if isinstance(data, LongList):
                return LongTensor(name, data, spec.dtype, mask, shape)
            if not isinstance(data, JsonArray):
                raise Invalid(f"expected data to be a list of numbers, got {describe(data)}", name)
            array = self.nested(name, data, spec.dtype, booleans=mask, nulls=mask)
        else:
            dtype, text = self.part(element["dtype"]), self.part(element["base64"])
            if dtype not in NUMERIC:
                raise Invalid(f"expected dtype to be one of {', '.join(sorted(NUMERIC))}, got {describe(dtype)}", name)
            if isinstance(text, LongText):
                return LongTensor(name, text, spec.dtype, mask, shape, dtype)
            try:
                content = base64_bytes(text)
            except (AttributeError, ValueError):  # no text, or no base64
                raise Invalid(NOT_BASE64, name) from None
            array = from_bytes(name, dtype, content)
        return check_shape(name, array, shape)


def _lengths(rows: Sequence[Any]) -> set[int]:
    """The different lengths of ``rows``; empty where one is no list. Texts and objects are refused later."""
    try:
        return set(map(len, rows))
    except TypeError:  # a number
        return set()


def _odd_row(rows: Sequence[Any], shape: Sequence[int]) -> str:
    """The first of ``rows``, which have this ``shape``, that is not like the one before all of them."""
    words = (f"{len(row)} item{'s' * (len(row) != 1)}" if isinstance(row, JsonArray) else describe(row) for row in rows)
    first = next(words)
    index, odd = next((item for item in enumerate(words, 1) if item[1] != first), (0, first))
    places = ([int(axis) for axis in np.unravel_index(place, shape)] for place in (0, index))
    return f"{first} at {next(places)}, {odd} at {next(places)}"


def _numbers(name: str, rows: JsonArray, shape: Sequence[int], kind: str, nulls: bool) -> np.ndarray:
    with suppress(TypeError, ValueError):
        return numbers_of(rows, kind)
    if nulls:
        with suppress(TypeError, ValueError):
            return parse_numbers(minified(rows), "f", nulls=True)
    if kind != "f":
        _raise_first_invalid(name, rows, shape, lambda item: type(item) is int, "whole numbers")

    def is_number(item: Any) -> bool:
        return type(item) in (int, float) or (nulls and item is None)

    _raise_first_invalid(name, rows, shape, is_number, "numbers")
    raise Invalid(f"a number is out of range for {'uint64' if kind == 'u' else 'int64'}", name)


def _booleans(name: str, rows: JsonArray, shape: Sequence[int]) -> np.ndarray:
    """Read booleans from the bytes: ``t`` occurs only in ``true``, ``f`` only in ``false``; text is refused."""
    text = np.frombuffer(minified(rows), np.uint8)
    true, false = text == ord("t"), text == ord("f")
    flat: np.ndarray = true[true | false]
    values = np.count_nonzero(text == ord(",")) + 1
    if flat.size != values or (text == ord('"')).any() or (text == ord("{")).any():
        _raise_first_invalid(name, rows, shape, lambda item: isinstance(item, bool), "booleans")
    return flat


def _count(text: bytes | memoryview, character: str) -> int:
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord(character)))


def scalar(name: str, element: Any, dtype: np.dtype) -> np.ndarray:
    """One number or flag as an array of shape ``()``."""
    allowed = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}[dtype.kind]
    if type(element) not in allowed:
        raise Invalid(f"expected {kind_words(dtype, one=True)}, got {describe(element)}", name)
    if dtype.kind in "iu" and not -(2**63) <= element < 2**63 + (2**63 if dtype.kind == "u" else 0):
        raise Invalid(f"{element} is out of range for {dtype}", name)
    return np.asarray(element)


def base64_bytes(text: str) -> bytes:
    """The bytes of base64, which may be broken into lines.

    Raises:
        ValueError: it is no base64.
    """
    return binascii.a2b_base64(text.encode().translate(None, b"\r\n"), strict_mode=True)


def _raise_first_invalid(
    name: str, rows: JsonArray, shape: Sequence[int], fits: Callable[[Any], bool], expected: str
) -> None:
    """Raise Invalid for the first element of nested lists that does not fit, if it is among the first elements."""
    level: list[Any] = [rows]
    for depth in range(1, len(shape) + 1):
        level = [*islice(chain.from_iterable(level), MAX_CHECKED)]
        for index, item in enumerate(level):
            if not (fits(item) if depth == len(shape) else isinstance(item, JsonArray)):
                place = [int(axis) for axis in np.unravel_index(index, shape[:depth])]
                raise Invalid(f"expected {expected}, got {describe(item)} at {place}", name)
    if prod(shape) > MAX_CHECKED:
        raise Invalid(f"expected {expected}, got another type", name)


def describe(element: Any) -> str:
    """The kind of an element of a request; of a text or number its value, too."""
    if isinstance(element, str):
        return json.dumps(shortened(element, MAX_QUOTED_BYTES), ensure_ascii=False)
    return WORDS.get(type(element), str(element))
