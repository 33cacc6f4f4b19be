"""JSON parsed by simdjson.

simdjson has the interpreter's lock as long as it parses, and every other request waits. So long lists are parsed in
pieces.
"""

import json
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import simdjson

from service.base.errors import Malformed
from service.codec.json_fault import Cut, describe

JsonArray: TypeAlias = simdjson.Array
JsonObject: TypeAlias = simdjson.Object

OBJECT = 'a JSON object, such as {"query": [[1, 0]]}'
COMMA = ord(",")
NULL_NUMBER = b"-1.7976931348623157e308"  # of float64; stands for null while a list is parsed
PIECE_BYTES = 1 << 18  # of numbers; about a millisecond
SLOW_PIECE_BYTES = 1 << 16  # of numbers with many digits and exponents; up to 12 milliseconds
MAX_FIELDS = 10_000  # of a document's object: some milliseconds
MAX_GAP_BYTES = 1 << 16  # of a list without a comma: a number, brackets and blanks
MAX_EXPONENTS = 2_000  # of numbers in a piece: each takes up to 7 microseconds where others take a tenth of one
NONCE = secrets.token_hex(8)  # begins every placeholder; no client can know it


class _ThreadParser(threading.local):
    """A thread's parser of lists of numbers: its memory serves one list after another."""

    parser: simdjson.Parser | None = None


_thread = _ThreadParser()


def parse_object(body: bytes | memoryview, cuts: Sequence[Cut] = ()) -> JsonObject:
    """The JSON object in ``body``, of which ``cuts`` were cut out.

    Raises:
        Malformed: empty, not JSON, or no object.
    """
    if not len(body):
        raise Malformed(f"the body is empty; expected {OBJECT}")
    try:
        parsed = simdjson.Parser().parse(body)
    except (ValueError, RuntimeError) as error:
        # Drop simdjson's error code and its "This is a fatal error" suffix.
        reason = re.sub(r"^[A-Z\d_]+: | +This is a fatal.*$", "", str(error))
        fault = describe(body, reason, [(placeholder(index), cut) for index, cut in enumerate(cuts)])
        raise Malformed(f"failed to parse the request JSON buffer: {fault}") from None
    if not isinstance(parsed, JsonObject):
        got = "a list" if isinstance(parsed, JsonArray) else "text" if isinstance(parsed, str) else json.dumps(parsed)
        raise Malformed(f"expected {OBJECT}, got {got}")
    if len(parsed) > MAX_FIELDS:
        raise Malformed(f"the JSON object has {len(parsed)} fields, more than the {MAX_FIELDS} allowed")
    return parsed


def numbers(content: memoryview, kind: str) -> Iterable[np.ndarray]:
    """The numbers of a flat JSON list, in pieces, as the widest type of numpy's ``kind``: f, i or u.

    Raises:
        ValueError: it is no flat JSON list of such numbers; of a long list, while its pieces are read.
    """
    is_short = len(content) <= PIECE_BYTES and not has_many_exponents(content)
    return (parse_numbers(content, kind),) if is_short else _long_numbers(content, kind)


def _long_numbers(content: memoryview, kind: str) -> Iterator[np.ndarray]:
    inside = content[1:-1]
    for text in split(inside):
        piece = parse_numbers(b"[%b]" % text, kind)
        if not piece.size:
            raise ValueError("no number between two commas")
        yield piece
    if inside[-1] == COMMA:
        raise ValueError("trailing comma in a list")


def has_many_exponents(content: memoryview | bytes) -> bool:
    """Whether the numbers in ``content`` may take longer to parse than one step should; not if it is short."""
    if len(content) <= SLOW_PIECE_BYTES:
        return False
    text, left = bytes(content), MAX_EXPONENTS
    for letter in (b"e", b"E"):  # bytes.count would take ten times as long where there are few
        place = text.find(letter)
        while place >= 0:
            if not left:
                return True
            left -= 1
            place = text.find(letter, place + 1)
    return False


def split(content: memoryview) -> Iterator[bytes]:
    """A list in pieces of about ``PIECE_BYTES`` that end where a comma stands, without these commas.

    Raises:
        Malformed: there is a long part without a comma.
    """
    start, length = 0, len(content)
    while start < length:
        is_slow = has_many_exponents(content[start : start + PIECE_BYTES])
        end = min(start + (SLOW_PIECE_BYTES if is_slow else PIECE_BYTES), length)
        if end < length:
            step = bytes(content[end : end + MAX_GAP_BYTES]).find(b",")
            if step < 0 and end + MAX_GAP_BYTES < length:
                raise Malformed(f"a list of numbers has more than {MAX_GAP_BYTES} bytes between two commas")
            end = length if step < 0 else end + step
        yield bytes(content[start:end])
        start = end + 1


def parse_numbers(content: bytes | memoryview, kind: str, nulls: bool = False) -> np.ndarray:
    """The numbers of a JSON list, as the widest type of numpy's ``kind``: f, i or u. With ``nulls``, null is -infinity.

    Raises:
        ValueError: it is no JSON list of such numbers.
    """
    if nulls:
        content = bytes(content).replace(b"null", NULL_NUMBER)
    parser, _thread.parser = _thread.parser or simdjson.Parser(), None
    try:
        parsed = parser.parse(content)
        if not isinstance(parsed, JsonArray):
            raise ValueError("not a list")
        values = flat(parsed, kind)
    except (RuntimeError, TypeError) as error:
        raise ValueError(str(error)) from None
    if len(content) <= PIECE_BYTES:
        del parsed  # a parser has one document at a time; the traceback of an error would keep it
        _thread.parser = parser
    return np.where(values == float(NULL_NUMBER), -np.inf, values) if nulls else values


def flat(array: JsonArray, kind: str) -> np.ndarray:
    """All numbers in a list, and in the lists in it.

    Raises:
        TypeError, ValueError: something else is in it.
    """
    buffer = array.as_buffer(of_type={"f": "d", "i": "i", "u": "u"}[kind])  # type: ignore[arg-type]
    return np.frombuffer(buffer, {"f": np.float64, "i": np.int64, "u": np.uint64}[kind])


def minified(array: JsonArray) -> bytes:
    """The JSON of a list, without blanks."""
    return array.mini  # type: ignore[return-value]  # bytes, whatever simdjson's stub says


def placeholder(index: int) -> bytes:
    """The text that replaces the part with this index in a document."""
    return b'"%s:%d"' % (NONCE.encode(), index)
