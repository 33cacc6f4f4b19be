"""Arrays as JSON, by orjson, each number in the fewest digits that read back as the same number; or rounded.

Large arrays are written in pieces: orjson has the interpreter's lock while it writes, and every other request waits.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import orjson

from service.base.steps import Steps
from service.codec.fixed_point import write_fixed

MAX_PIECE_NUMBERS = 1 << 16  # about a millisecond
MAX_GROUP_STRINGS, MAX_GROUP_CHARACTERS = 1 << 10, 1 << 18  # a longer string is a group of its own
MAX_FIXED_NUMBERS = 1 << 14  # temporary arrays of so many fit in a core's cache
PLACEHOLDER = b"\0"  # marks a place in JSON text, where this byte never occurs: it is always escaped


def write_json(
    frame: list[bytes], lists: Sequence[np.ndarray | bytes], decimals: int | None = None
) -> Steps[list[bytes]]:
    """A JSON document in pieces: one of ``lists`` after each part of ``frame`` but the last.

    Arrays have to be contiguous, and flat if they are of strings; bytes are JSON already. Floats are rounded to
    ``decimals``; None = exact.
    """
    pieces = frame[:1]
    for entry, after in zip(lists, frame[1:], strict=True):
        if isinstance(entry, bytes):
            pieces.append(entry)
        elif entry.dtype == np.object_:
            pieces.append(b"[")
            for index, group in enumerate(group_strings(entry)):
                pieces.append(b","[: index > 0] + orjson.dumps(group)[1:-1])
                yield
            pieces.append(b"]")
        elif decimals is not None and entry.dtype.kind == "f":
            for piece in _pieces(entry, partial(write_fixed, decimals=decimals), MAX_FIXED_NUMBERS):
                pieces.append(piece)
                yield
        elif entry.size <= MAX_PIECE_NUMBERS:
            pieces.append(_exact(entry))
        else:
            for piece in _pieces(entry, _exact, MAX_PIECE_NUMBERS):
                pieces.append(piece)
                yield
        pieces.append(after)
        yield
    return pieces


def group_strings(array: np.ndarray) -> Iterator[list[str]]:
    """The strings of a flat array in groups that are short enough to be written in one call."""
    group: list[str] = []
    characters = 0
    for text in array:
        group.append(text)
        characters += len(text)
        if len(group) == MAX_GROUP_STRINGS or characters >= MAX_GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _pieces(array: np.ndarray, write: Callable[[np.ndarray], bytes], most: int) -> Iterator[bytes]:
    """The nested lists of a contiguous array, of at most ``most`` numbers each: small rows together."""
    if array.size <= most:
        yield write(array)
        return
    step = most * len(array) // array.size
    yield b"["
    for row in range(0, len(array), step or 1):
        if row:
            yield b","
        if step:
            yield write(array[row : row + step])[1:-1]
        else:
            yield from _pieces(array[row], write, most)
    yield b"]"


def _exact(array: np.ndarray) -> bytes:
    return orjson.dumps(array if array.ndim else array[()], option=orjson.OPT_SERIALIZE_NUMPY)
