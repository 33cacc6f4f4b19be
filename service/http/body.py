"""A request's body. A wrong media type, encoding or length is refused before the body is read."""

from collections.abc import Mapping
from io import BytesIO

import numpy as np
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from service.base.budget import Reservation
from service.base.errors import Malformed, TooLarge, UnsupportedMedia
from service.base.messages import size_words, sizes_words

Body = bytes | memoryview
Headers = Mapping[bytes, bytes]
JSON_LENGTH = "Inference-Header-Content-Length"  # what V2 calls the length of the first part
JSON_LENGTH_HEADER = JSON_LENGTH.lower().encode()
ALIGNMENT = 64  # bytes; a cache line
SMALLER = "send fewer rows in a request"
MAX_JOINED_BYTES = 4 << 20  # joined in one call; some milliseconds, in which other requests wait


def require_json(headers: Headers) -> None:
    """Check that a request is declared as JSON, or not at all.

    Raises:
        UnsupportedMedia: it is declared as something else.
    """
    media = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if media != b"application/json":
        raise UnsupportedMedia(
            f"expected Content-Type application/json (with curl: -H 'Content-Type: application/json'), got "
            f"{media.decode('latin-1')}"
        )


def read_json_length(headers: Headers) -> int | None:
    """How many bytes of the body are JSON; None where its headers do not say that others follow.

    Raises:
        Malformed: it is no number.
    """
    value = headers.get(JSON_LENGTH_HEADER)
    if value is None:
        return None
    if not (value.isdigit() and len(value) <= 10 and int(value) < 2**31):
        raise Malformed(f"expected {JSON_LENGTH} to be a whole number of bytes, got {value[:20].decode('latin-1')!r}")
    return int(value)


async def receive_body(
    receive: Receive, headers: Headers, longest: int, limit: str = "max_body_bytes", advice: str = SMALLER
) -> bytes:
    """The body as it came, of at most ``longest`` bytes.

    Raises:
        TooLarge: it is longer, by its declared length or as it comes.
        ClientDisconnect: the client disconnected before its end.
    """
    length = _declared_length(headers, longest, limit, advice)
    return await _receive_rest(receive, *await _next(receive), length, longest, limit, advice)


async def receive_parts(receive: Receive, headers: Headers, longest: int, first: int) -> tuple[bytes, Body]:
    """The body in two parts: its ``first`` bytes, and those behind them, aligned for numbers.

    Raises:
        Malformed: it ends before.
        TooLarge, ClientDisconnect: as above.
    """
    length = _declared_length(headers, longest)
    chunk, more = await _next(receive)
    if not more or length is None or length < first:
        return split(await _receive_rest(receive, chunk, more, length, longest), first)
    buffer = BodyBuffer(length, first)
    buffer.add(chunk)
    while more:
        chunk, more = await _next(receive)
        buffer.add(chunk)
    return buffer.parts()


class BodyBuffer:
    """A body of known length, filled as its pieces come: joining them later would copy them again.

    What follows its ``first`` bytes is aligned for numbers.
    """

    def __init__(self, length: int, first: int) -> None:
        self._start = -first % ALIGNMENT
        self._middle = self._start + first
        self._bytes = np.empty(self._start + length, np.uint8).data
        self._end = self._start

    def add(self, piece: Body) -> None:
        end = self._end + len(piece)
        self._bytes[self._end : end] = piece
        self._end = end

    def parts(self) -> tuple[bytes, Body]:
        """The first bytes and the others, once all have come."""
        return _parts(self._bytes[self._start : self._end], self._middle - self._start)

    def so_far(self) -> memoryview:
        """All that has come."""
        return self._bytes[self._start : self._end]


class ChunkBuffer:
    """The chunks of a body, joined at its end, or written to one place as they come where that would take long.

    ``length`` is that of the body, where it is known: its place then has this size from the start, and never moves.
    """

    def __init__(self, length: int | None = None) -> None:
        self.length = 0
        self._chunks: list[bytes] = []
        self._joined: BytesIO | None = None
        if length and length > MAX_JOINED_BYTES:
            self._joined = BytesIO(bytes(length))  # pages of zeros, which take no memory until they are written

    def add(self, chunk: bytes) -> None:
        self.length += len(chunk)
        if self._joined is not None:
            self._joined.write(chunk)
            return
        self._chunks.append(chunk)
        if self.length >= MAX_JOINED_BYTES:
            self._joined = BytesIO(b"".join(self._chunks))
            self._joined.seek(self.length)
            self._chunks.clear()

    def whole(self) -> bytes:
        """All chunks in one; none can be added after this."""
        return b"".join(self._chunks) if self._joined is None else self._joined.getvalue()[: self.length]


class CountedReceive:
    """``receive`` of one request, whose bytes are reserved of the memory budget."""

    def __init__(self, receive: Receive, reservation: Reservation) -> None:
        self._receive = receive
        self._reservation = reservation

    async def __call__(self) -> Message:
        """Raises TooMuchMemory or Overloaded where there is no room for them."""
        message = await self._receive()
        if body := message.get("body", b""):
            self._reservation.add(len(body))
        return message


def split(body: bytes, first: int) -> tuple[bytes, Body]:
    """A whole body in two parts: its ``first`` bytes, and those behind them.

    Raises:
        Malformed: it is shorter.
    """
    if first > len(body):
        raise Malformed(f"expected {JSON_LENGTH} to be at most {len(body)}, the length of the body, got {first}")
    return (body, b"") if first == len(body) else _parts(memoryview(body), first)


def _parts(body: memoryview, first: int) -> tuple[bytes, Body]:
    """The ``first`` bytes, copied, and the others: as a view only where they are the larger part."""
    others = body[first:]
    return bytes(body[:first]), others if len(others) > first else bytes(others)


async def _receive_rest(
    receive: Receive,
    chunk: bytes,
    more: bool,
    length: int | None,
    longest: int,
    limit: str = "max_body_bytes",
    advice: str = SMALLER,
) -> bytes:
    chunks = ChunkBuffer(length if more else None)
    chunks.add(chunk)
    while more and chunks.length <= longest:
        chunk, more = await _next(receive)
        chunks.add(chunk)
    if chunks.length > longest:
        raise TooLarge(f"the body exceeds the maximum allowed, {size_words(longest)} ({limit}); {advice}")
    return chunks.whole()


def _declared_length(
    headers: Headers, longest: int, limit: str = "max_body_bytes", advice: str = SMALLER
) -> int | None:
    declared = headers.get(b"content-length", b"")
    length = int(declared) if declared.isdigit() else None
    if length is not None and length > longest:
        got, most = sizes_words(length, longest)
        raise TooLarge(f"the body has {got}, which exceeds the maximum allowed, {most} ({limit}); {advice}")
    return length


async def _next(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)
