"""Arrays as JSON, by orjson, each number in the fewest digits that read back as the same number.

Large arrays are written in pieces: orjson has the interpreter's lock while it writes, and every other request waits.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import orjson

from service.codec.steps import Steps

MAX_PIECE_NUMBERS = 1 << 16  # about a millisecond
HOLE = b"\0"  # marks a place in JSON text, where this byte never occurs: it is always escaped


def write_json(frame: list[bytes], lists: Sequence[np.ndarray | bytes]) -> Steps[list[bytes]]:
    """A JSON document in pieces: one of ``lists`` after each part of ``frame`` but the last.

    Arrays have to be contiguous; bytes are JSON already.
    """
    pieces = frame[:1]
    for entry, after in zip(lists, frame[1:], strict=True):
        if isinstance(entry, bytes):
            pieces.append(entry)
        elif entry.size <= MAX_PIECE_NUMBERS:
            pieces.append(orjson.dumps(entry if entry.ndim else entry[()], option=orjson.OPT_SERIALIZE_NUMPY))
        else:
            for piece in _pieces(entry):
                pieces.append(piece)
                yield
        pieces.append(after)
        yield
    return pieces


def _pieces(array: np.ndarray) -> Iterator[bytes]:
    """The nested lists of a contiguous array: small rows together, a large row in pieces."""
    if array.size <= MAX_PIECE_NUMBERS:
        yield orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
        return
    step = MAX_PIECE_NUMBERS * len(array) // array.size
    yield b"["
    for row in range(0, len(array), step or 1):
        if row:
            yield b","
        if step:
            yield orjson.dumps(array[row : row + step], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        else:
            yield from _pieces(array[row])
    yield b"]"
