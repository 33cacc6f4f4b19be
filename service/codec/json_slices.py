"""Large JSON in slices: long lists of numbers and long strings are cut out of a document and read piece by piece.

simdjson has the interpreter's lock while it parses, about 4 ms a megabyte, and an object for each row takes longer. The
rest of a document without its long parts is small and is parsed in one call. The long lists are read without an object
for any row: their shape follows from the brackets and commas.
"""

import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
import orjson

from service.base.errors import Invalid, Malformed, TooLarge
from service.base.messages import size_words
from service.base.steps import Steps
from service.codec.json_fault import MEANT
from service.codec.json_parser import (
    COMMA,
    MAX_GAP_BYTES,
    NONCE,
    PIECE_BYTES,
    has_many_exponents,
    parse_numbers,
    placeholder,
    split,
)

LARGE_BODY_BYTES = 1 << 19  # of smaller documents, which take up to 2 ms, only those with many rows are cut
MAX_ROWS = 1 << 13  # lists in a document that is parsed in one call; some milliseconds
MIN_COUNTED_BYTES = 1 << 16  # of a document whose rows are counted
MIN_LONG_PART_BYTES = 1 << 12  # between two quotation marks; shorter parts stay in the document
MAX_REST_BYTES = 4 << 20  # of a document without its long parts; 20 ms to parse
SEND_TENSORS = "send large tensors as flat or nested lists of numbers, as base64, or in binary"
MAX_ESCAPED_QUOTES = 1 << 10  # behind two backslashes or more, in one document; nothing is cut after them
MAX_RUN_BYTES = 1 << 10  # of brackets and blanks at the start or end of a list
MAX_RANK = 16
MAX_COMPARED_BYTES = 1 << 20  # compared or searched in one step

QUOTE, BACKSLASH, OPEN, CLOSE = b'"\\[]'
BLANKS = b" \t\r\n"
NOT_STRUCTURE = bytes(set(range(256)) - set(b"[],"))
NOT_BOOLEAN = bytes(set(range(256)) - set(b"tf"))
NO_BRACKETS = bytes.maketrans(b"[]", b"  ")
ESCAPES = {rb"\n": b"", rb"\r": b"", rb"\/": b"/"}  # in base64: what JSON writers put in place of a character
ESCAPES |= {rb"\u00%b" % code: bytes.fromhex(code.decode()) for code in (b"2B", b"2b", b"2F", b"2f", b"3D", b"3d")}
MAX_ESCAPE_BYTES = 6
NUMBER = re.compile(rb"\s*-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?\s*")
BOOLEAN = re.compile(rb"\s*(true|false)\s*")
BOOLEANS = re.compile(rb"%b(,%b)*" % (BOOLEAN.pattern, BOOLEAN.pattern))
WIDEST = {"f": "float64", "i": "int64", "u": "uint64"}


@dataclass(frozen=True, slots=True)
class LongText:
    """The text of a JSON string, with its escapes."""

    marks: ClassVar[int] = 2  # characters around the content: its quotation marks
    content: memoryview

    def text(self) -> str:
        """The string; to be called for short ones.

        Raises:
            ValueError: it has an escape that JSON has not.
        """
        return str(orjson.loads(b'"%b"' % bytes(self.content)))

    def base64(self) -> Steps[bytearray]:
        """The bytes that the string encodes; line breaks are ignored.

        Raises:
            ValueError: it is not base64.
        """
        decoded = bytearray()
        left, is_padded = b"", False
        for start in range(0, len(self.content), PIECE_BYTES):
            text = left + bytes(self.content[start : start + PIECE_BYTES])
            for escape, character in ESCAPES.items():
                text = text.replace(escape, character)
            backslash = text.find(b"\\")  # of an escape that the next piece continues
            ready = len(text) if backslash < 0 else backslash
            is_last = start + PIECE_BYTES >= len(self.content)
            if is_last or len(text) - ready > MAX_ESCAPE_BYTES:
                ready = len(text)
            if is_padded and ready:
                raise ValueError("data after padding")
            whole = ready if is_last else ready // 4 * 4
            decoded += binascii.a2b_base64(text[:whole], strict_mode=True)
            left, is_padded = text[whole:], is_padded or text[:whole].endswith(b"=")
            yield
        return decoded


@dataclass(frozen=True, slots=True)
class LongList:
    """The JSON list ``body[start:end]``, nested or flat, of numbers or booleans."""

    marks: ClassVar[int] = 0
    body: bytes
    start: int
    end: int

    @property
    def content(self) -> memoryview:
        """Its text."""
        return memoryview(self.body)[self.start : self.end]

    @property
    def is_boolean(self) -> bool:
        begin = self.body[self.start : self.start + MAX_GAP_BYTES]
        return begin.lstrip(b"[" + BLANKS)[:1] in (b"t", b"f")

    def shape(self, name: str) -> Steps[tuple[int, ...]]:
        """The size of each axis, from the brackets and commas.

        Raises:
            Invalid: rows of different lengths, or more than ``MAX_RANK`` axes.
        """
        structure = bytearray()
        for start in range(self.start, self.end, PIECE_BYTES):
            structure += self.body[start : min(start + PIECE_BYTES, self.end)].translate(None, NOT_STRUCTURE)
            yield
        return (yield from _shape(name, structure))

    def pieces(self, name: str, kind: str, shape: tuple[int, ...], nulls: bool = False) -> Iterator[np.ndarray]:
        """The elements in order: booleans (``kind`` b), or numbers as the widest of numpy's ``kind`` f, i or u.

        ``shape`` is the list's own. With ``nulls``, null is -inf.

        Raises:
            Malformed: it is not JSON.
            Invalid: an element of another type, or one that does not fit.
        """
        count = depth = 0
        for text in map(bytes, split(self.body, self.start, self.end)):
            after = depth + text.count(b"[") - text.count(b"]")
            try:
                if kind == "b":
                    _check_brackets(name, text)
                    piece = _booleans(text.translate(NO_BRACKETS))
                else:
                    piece = parse_numbers(b"[" * depth + text + b"]" * after, kind, nulls)
                if not piece.size:
                    raise ValueError("no number between two commas")
            except ValueError:
                _check_brackets(name, text)
                raise _wrong_element(name, text.translate(NO_BRACKETS), kind, count, shape) from None
            depth = after
            count += piece.size
            yield piece
        if count != prod(shape):
            raise _malformed(f"trailing comma in a list of {name}")


def is_large(body: bytes) -> bool:
    """Whether ``body`` would take long to parse in one call."""
    if len(body) > LARGE_BODY_BYTES or len(body) <= MIN_COUNTED_BYTES:
        return len(body) > LARGE_BODY_BYTES
    return body.count(b"[") > MAX_ROWS or has_many_exponents(body, 0, len(body))


def cut(
    body: bytes, max_rest: int = MAX_REST_BYTES, advice: str = SEND_TENSORS
) -> Steps[tuple[bytes, list[LongText | LongList]]]:
    """``body`` with a placeholder (see ``part``) for each long string and list, and these parts in order.

    Raises:
        TooLarge: what remains is longer than ``max_rest``; ``advice`` says what to send instead.
    """
    view = memoryview(body)
    rest: list[bytes | memoryview] = []
    parts: list[LongText | LongList] = []
    kept = escaped = 0
    last, is_text = -1, False  # the last quotation mark; whether it begins a string
    for start in range(0, len(body), PIECE_BYTES):
        piece = np.frombuffer(body, np.uint8, min(PIECE_BYTES, len(body) - start), start)
        quotes = np.flatnonzero(piece == QUOTE) + start
        follows = _follows_backslash(body, quotes)
        doubtful = follows & _follows_backslash(body, quotes - 1)
        suspects = [int(quote) for quote in quotes[doubtful][: MAX_ESCAPED_QUOTES + 1]]
        escaped += len(suspects)
        if escaped > MAX_ESCAPED_QUOTES:
            break
        quotes = quotes[~follows | doubtful]
        quotes = np.setdiff1d(quotes, [quote for quote in suspects if _is_escaped(body, quote)], assume_unique=True)
        ends = np.concatenate([quotes, [len(body)]]) if start + PIECE_BYTES >= len(body) else quotes
        befores = np.concatenate([[last], ends[:-1]])
        for index in np.flatnonzero(ends - befores > MIN_LONG_PART_BYTES).tolist():
            before, end = int(befores[index]), int(ends[index])
            inside = is_text ^ bool(index % 2)
            place = _text_value(body, before, end) if inside else (yield from _list_value(body, before + 1, end))
            if place:
                first, stop = place
                parts.append(LongText(view[first + 1 : stop - 1]) if inside else LongList(body, first, stop))
                rest += [view[kept:first], placeholder(len(parts) - 1)]
                kept = stop
        if quotes.size:
            last = int(quotes[-1])
            is_text ^= bool(quotes.size % 2)
        yield
    rest.append(view[kept:])
    size = sum(map(len, rest))
    if size > max_rest:
        raise TooLarge(
            f"the JSON has {size_words(size)} apart from long lists of numbers and long strings, more than the "
            f"{size_words(max_rest)} allowed; {advice}"
        )
    return b"".join(rest), parts


def part(element: Any, parts: Sequence[LongText | LongList]) -> Any:
    """The long part for which ``element`` is the placeholder; ``element`` itself if it is no placeholder."""
    if parts and isinstance(element, str) and element.startswith(NONCE):
        index = element[len(NONCE) + 1 :]
        if index.isdecimal() and int(index) < len(parts):
            return parts[int(index)]
    return element


def _follows_backslash(body: bytes, quotes: np.ndarray) -> np.ndarray:
    after = np.zeros(len(quotes), np.bool_)
    if quotes.size:
        after[:] = np.frombuffer(body, np.uint8)[np.maximum(quotes - 1, 0)] == BACKSLASH
    return after


def _is_escaped(body: bytes, quote: int) -> bool:
    """Whether an odd number of backslashes stands before it."""
    start = max(0, quote - MAX_RUN_BYTES)
    before = body[start:quote]
    return bool((len(before) - len(before.rstrip(b"\\"))) % 2)


def _text_value(body: bytes, start: int, end: int) -> tuple[int, int] | None:
    """The string between two quotation marks, these included, if it is a field's value."""
    is_value = body[max(0, start - MAX_RUN_BYTES) : start].rstrip(BLANKS).endswith(b":")
    return (start, end + 1) if is_value and end < len(body) else None


def _list_value(body: bytes, start: int, end: int) -> Steps[tuple[int, int] | None]:
    """Start and end of a list of lists or numbers between two strings, if it is long.

    Brackets of the document around it may stand on either side: of those at the start and at the end, as many belong
    to the list as there are on both sides.
    """
    first = body.find(b"[", start, end)
    if first < 0:
        return None
    for brace in (b"{", b"}"):
        place = yield from _find(body, brace, first, end)
        end = end if place < 0 else place
    last = body.rfind(b"]", first, end)
    opening = _brackets(body[first : first + MAX_RUN_BYTES], OPEN)
    closing = _brackets(body[max(first, last + 1 - MAX_RUN_BYTES) : last + 1][::-1], CLOSE)
    depth = min(len(opening), len(closing))
    if last < 0 or not depth:
        return None
    begin, finish = first + opening[-depth], last + 1 - closing[-depth]
    return (begin, finish) if finish - begin > MIN_LONG_PART_BYTES else None


def _brackets(text: bytes, bracket: int) -> list[int]:
    """The places of ``bracket`` in ``text`` before the first character that is neither it nor a blank."""
    run = text[: len(text) - len(text.lstrip(bytes([bracket]) + BLANKS))]
    return [place for place, character in enumerate(run) if character == bracket]


def _shape(name: str, structure: bytearray) -> Steps[tuple[int, ...]]:
    """The shape of a list with these brackets and commas; at each depth all rows are compared with the first."""
    rank = len(structure[: MAX_RANK + 1]) - len(structure[: MAX_RANK + 1].lstrip(b"["))
    if rank > MAX_RANK:
        raise Invalid(f"nested more than {MAX_RANK} levels deep", name)
    ragged = Invalid("rows of different lengths", name)
    sizes: list[int] = []
    row = 0  # brackets and commas of a list one level further in
    for depth in range(rank - 1, -1, -1):
        closing = b"]" * (rank - depth)
        end = yield from _find(structure, closing, depth, len(structure))
        if end < 0:
            raise ragged
        length = end + len(closing) - depth
        if depth == rank - 1:
            for start in range(depth + 1, end, MAX_COMPARED_BYTES):
                if structure[start : min(start + MAX_COMPARED_BYTES, end)].strip(b","):
                    raise ragged
                yield
            sizes.append(length - 1)
        else:
            size, left = divmod(length - 1, row + 1)
            if left:
                raise ragged
            rows = np.frombuffer(structure, np.uint8, size * (row + 1), depth + 1).reshape(size, row + 1)
            step = max(1, MAX_COMPARED_BYTES // (row + 1))
            for start in range(0, size, step):
                separators = rows[start : min(start + step, size - 1), row]
                if (rows[start : start + step, :row] != rows[0, :row]).any() or (separators != COMMA).any():
                    raise ragged
                yield
            sizes.append(size)
        row = length
    if row != len(structure):
        raise ragged
    return tuple(reversed(sizes))


def _find(content: bytes | bytearray, wanted: bytes, start: int, end: int) -> Steps[int]:
    """The first place of ``wanted`` between ``start`` and ``end``; -1 if there is none."""
    for begin in range(start, end, MAX_COMPARED_BYTES):
        place = content.find(wanted, begin, min(begin + MAX_COMPARED_BYTES + len(wanted) - 1, end))
        if place >= 0:
            return place
        yield
    return -1


def _check_brackets(name: str, text: bytes) -> None:
    """Check that no number stands outside its list: ``[1,]2`` has the same brackets and commas as ``[1,2]``."""
    packed = text.translate(None, BLANKS)
    characters = np.frombuffer(packed, np.uint8)
    before = np.flatnonzero(characters == OPEN) - 1
    after = np.flatnonzero(characters == CLOSE) + 1
    openers, closers = characters[before[before >= 0]], characters[after[after < len(characters)]]
    outside = ((openers != OPEN) & (openers != COMMA)).any() or ((closers != CLOSE) & (closers != COMMA)).any()
    if outside:
        raise _malformed(f"{name} has a number outside its list")


def _booleans(text: bytes) -> np.ndarray:
    """The values of true and false; ``t`` occurs only in ``true``, ``f`` only in ``false``. Raises ValueError."""
    if not BOOLEANS.fullmatch(text):
        raise ValueError("not booleans")
    booleans: np.ndarray = np.frombuffer(text.translate(None, NOT_BOOLEAN), np.uint8) == ord("t")
    return booleans


def _wrong_element(name: str, text: bytes, kind: str, count: int, shape: tuple[int, ...]) -> Invalid | Malformed:
    """The error of the first element in ``text`` that is wrong; ``count`` elements of the list stand before it."""
    fits = BOOLEAN if kind == "b" else NUMBER
    expected = {"b": "booleans", "f": "numbers"}.get(kind, "whole numbers")
    for index, element in enumerate(text.split(b",")):
        is_fraction = kind in "iu" and set(element) & set(b".eE")
        if fits.fullmatch(element) and not is_fraction:
            continue
        place = [int(axis) for axis in np.unravel_index(min(count + index, prod(shape) - 1), shape)]
        word = element.strip()[:40].decode("utf-8", "replace")
        if not word and shape[-1] == 1:
            return Invalid("empty; every axis must have at least one element", name)
        if word in ("null", "true", "false") or NUMBER.fullmatch(element):
            got = "a boolean" if word in ("true", "false") else word
            return Invalid(f"expected {expected}, got {got} at {place}", name)
        hint = f"; {MEANT[word]}" if word in MEANT else ""
        return _malformed(f"expected {expected} at {place} of {name}, got {word or 'nothing'}{hint}")
    return Invalid(f"a number is out of range for {WIDEST[kind]}", name)


def _malformed(reason: str) -> Malformed:
    return Malformed(f"failed to parse the request JSON buffer: {reason}")
