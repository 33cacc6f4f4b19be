"""An answer sent in pieces: small ones as one, large ones as they lie, since joining them costs another copy."""

from collections.abc import Sequence

from starlette.types import Send

from service.body import Body

SMALL = 1 << 16  # bytes


async def respond(send: Send, pieces: Sequence[Body], headers: Sequence[tuple[bytes, bytes]]) -> None:
    """A 200 whose body is ``pieces``, one after another."""
    length = sum(map(len, pieces))
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [*headers, (b"content-length", b"%d" % length)],
        }
    )
    if len(pieces) > 1 and length > SMALL:
        for piece in pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": pieces[-1]})
    else:
        await send({"type": "http.response.body", "body": pieces[0] if len(pieces) == 1 else b"".join(pieces)})
