"""An answer in its pieces: joined, unless they are so large that another copy costs more than waiting between them."""

from collections.abc import Sequence

import numpy as np
from starlette.types import Send

from service.body import Body

SMALL = 1 << 16  # bytes, of which a copy costs nothing
LARGE = 1 << 24  # bytes; each piece waits until the client has taken the one before
Piece = bytes | np.ndarray  # an array is contiguous


async def respond(send: Send, pieces: Sequence[Piece], fields: Sequence[tuple[bytes, bytes]]) -> None:
    """A 200 whose body is ``pieces``, one after another."""
    length = length_of(pieces)
    headers = [*fields, (b"content-length", b"%d" % length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if len(pieces) > 1 and length > LARGE:
        for piece in pieces[:-1]:
            await send({"type": "http.response.body", "body": flat(piece), "more_body": True})
        await send({"type": "http.response.body", "body": flat(pieces[-1])})
    else:
        await send({"type": "http.response.body", "body": join(pieces)})


def length_of(pieces: Sequence[Piece]) -> int:
    """Bytes of all of them."""
    return sum([len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces])


def join(pieces: Sequence[Piece]) -> bytes:
    """All of them in one."""
    return b"".join(pieces)  # type: ignore[arg-type]  # an array is a buffer


def flat(piece: Piece) -> Body:
    """A piece as its bytes."""
    return piece if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8).data
