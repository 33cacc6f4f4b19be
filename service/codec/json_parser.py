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


def numbers(content: bytes, start: int, end: int, kind: str) -> Iterable[np.ndarray]:
    """The numbers of the flat JSON list ``content[start:end]``, in pieces, as the widest type of numpy's ``kind``:
    f, i or u.

    Raises:
        ValueError: it is no flat JSON list of such numbers; of a long list, while its pieces are read.
    """
    if end - start <= PIECE_BYTES and not has_many_exponents(content, start, end):
        return (parse_numbers(memoryview(content)[start:end], kind),)
    return _long_numbers(content, start + 1, end - 1, kind)


def _long_numbers(content: bytes, start: int, end: int, kind: str) -> Iterator[np.ndarray]:
    for text in split(content, start, end):
        piece = parse_numbers(b"".join((b"[", text, b"]")), kind)
        if not piece.size:
            raise ValueError("no number between two commas")
        yield piece
    if content[end - 1] == COMMA:
        raise ValueError("trailing comma in a list")


def has_many_exponents(content: bytes, start: int, end: int) -> bool:
    """Whether ``content[start:end]`` has numbers that may take longer to parse than one step should; not if short."""
    if end - start <= SLOW_PIECE_BYTES:
        return False
    left = MAX_EXPONENTS
    for letter in (b"e", b"E"):  # bytes.count would take ten times as long where there are few
        place = content.find(letter, start, end)
        while place >= 0:
            if not left:
                return True
            left -= 1
            place = content.find(letter, place + 1, end)
    return False


def split(content: bytes, start: int, end: int) -> Iterator[memoryview]:
    """The list ``content[start:end]`` in pieces of about ``PIECE_BYTES`` that end where a comma stands, without these
    commas.

    Raises:
        Malformed: there is a long part without a comma.
    """
    view = memoryview(content)
    while start < end:
        is_slow = has_many_exponents(content, start, min(start + PIECE_BYTES, end))
        least = start + (SLOW_PIECE_BYTES if is_slow else PIECE_BYTES)
        comma = content.find(b",", least, min(least + MAX_GAP_BYTES, end))
        if comma < 0 and least + MAX_GAP_BYTES < end:
            raise Malformed(f"a list of numbers has more than {MAX_GAP_BYTES} bytes between two commas")
        stop = end if comma < 0 else comma
        yield view[start:stop]
        start = stop + 1


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
    if len(content) <= PIECE_BYTES + 2 * MAX_GAP_BYTES:  # else its memory is freed
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
