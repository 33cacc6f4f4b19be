"""A JSON object parsed by simdjson, with this thread's parser: its buffers are kept from one request to the next."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import simdjson

from service.errors import Malformed

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
