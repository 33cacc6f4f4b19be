"""Arrays into JSON, by orjson, each number in the fewest digits that read back as the same. Large ones go in pieces:
orjson holds the interpreter's lock as long as it writes, and everyone else waits."""

from collections.abc import Iterator, Sequence

import numpy as np
import orjson

from service.turns import Steps

MOST = 1 << 16  # numbers of a piece; about a millisecond
PLACE = b"\0"  # in JSON text, such a byte is never left as it is


def filled(frame: list[bytes], lists: Sequence[np.ndarray | bytes]) -> Steps[list[bytes]]:
    """A JSON document in pieces: what is in ``frame``, and between each two of them a list of ``lists``.

    An array is contiguous; bytes are JSON already.
    """
    pieces = frame[:1]
    for of, after in zip(lists, frame[1:], strict=True):
        for piece in (of,) if isinstance(of, bytes) else _pieces(of):
            pieces.append(piece)
            yield
        pieces.append(after)
    return pieces


def _pieces(array: np.ndarray) -> Iterator[bytes]:
    """The nested lists of a contiguous array: rows of it together while they are small, and each in pieces if not."""
    if array.size <= MOST:
        yield orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
        return
    at_once = MOST * len(array) // array.size
    yield b"["
    for row in range(0, len(array), at_once or 1):
        if row:
            yield b","
        if at_once:
            yield orjson.dumps(array[row : row + at_once], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        else:
            yield from _pieces(array[row])
    yield b"]"
