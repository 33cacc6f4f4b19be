"""A JSON object parsed by simdjson, with this thread's parser: its buffers are kept from one request to the next."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import simdjson

from service.errors import Malformed

PIECE = 1 << 18  # bytes of numbers; about a millisecond
LONGEST_NUMBER = 1 << 10  # bytes; where none ends within so many, the list is not one of numbers
LONG = 1 << 20  # bytes; a longer body gets its own parser, whose buffers go with it
_own = threading.local()  # a parser serves one document at a time


@contextmanager
def document(body: bytes | memoryview) -> Iterator[simdjson.Object]:
    """The object that ``body`` holds; nothing of it may be kept past the block.

    Raises:
        Malformed: empty, not JSON, or no object.
    """
    try:
        yield _parse(_parser(len(body)), body)
    except Exception:
        _own.parser = None  # the traceback keeps the document alive, and with it this parser busy
        raise


def numbers(content: memoryview, kind: str) -> Iterator[np.ndarray]:
    """The numbers of a flat JSON list, as the widest of a ``kind`` of numpy's: f, i or u.

    A long one is parsed in pieces: simdjson holds the interpreter's lock as long as it parses, and everyone else waits.

    Raises:
        ValueError: it is no flat JSON list of such numbers.
    """
    if len(content) <= PIECE:
        yield _numbers(content, kind)
        return
    place, last = 1, len(content) - 1
    while place < last:
        end = min(place + PIECE, last)
        if end < last:
            comma = bytes(content[end : end + LONGEST_NUMBER]).find(b",")
            if comma < 0:
                raise ValueError("no number ends here")
            end += comma
        piece = _numbers(memoryview(b"[%b]" % bytes(content[place:end])), kind)
        if not piece.size or end + 1 == last:
            raise ValueError("a comma without a number")
        yield piece
        place = end + 1


def _numbers(content: memoryview, kind: str) -> np.ndarray:
    try:
        parsed = _parser(len(content)).parse(content)
        if not isinstance(parsed, simdjson.Array):
            raise ValueError("not a list")
        return flat(parsed, kind)
    except (RuntimeError, TypeError) as error:
        raise ValueError(str(error)) from None


def flat(array: simdjson.Array, kind: str) -> np.ndarray:
    """All numbers in a list of simdjson's, and in the lists in it.

    Raises:
        TypeError, ValueError: something else is in it.
    """
    buffer = array.as_buffer(of_type={"f": "d", "i": "i", "u": "u"}[kind])  # type: ignore[arg-type]
    return np.frombuffer(buffer, {"f": np.float64, "i": np.int64, "u": np.uint64}[kind])


def _parser(length: int) -> simdjson.Parser:
    if length > LONG:
        return simdjson.Parser()
    if getattr(_own, "parser", None) is None:
        _own.parser = simdjson.Parser()
    parser: simdjson.Parser = _own.parser
    return parser


def _parse(parser: simdjson.Parser, body: bytes | memoryview) -> simdjson.Object:
    if not len(body):
        raise Malformed("the body is empty; expected a JSON object")
    try:
        parsed = parser.parse(body)
    except (ValueError, RuntimeError) as error:
        said = re.sub(r"^[A-Z\d_]+: | +This is a fatal.*$", "", str(error))  # simdjson's code, and its despair
        raise Malformed(f"failed to parse the request JSON buffer: {said}") from None
    if not isinstance(parsed, simdjson.Object):
        raise Malformed("expected a JSON object")
    return parsed
