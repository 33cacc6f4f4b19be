"""A request's body: its media type, its encoding and its length are refused before it is read."""

from collections.abc import Mapping

import numpy as np
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from service.errors import TooLarge, UnsupportedEncoding, UnsupportedMedia

Body = bytes | memoryview
Headers = Mapping[bytes, bytes]


async def receive_json(receive: Receive, headers: Headers, longest: int) -> Body:
    """The body of a JSON request, of at most ``longest`` bytes.

    Raises:
        UnsupportedMedia: it is not declared as JSON, or it is compressed.
        TooLarge: it is longer, by its declared length or as it comes.
    """
    media = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if media != b"application/json":
        raise UnsupportedMedia(f"expected Content-Type application/json, got {media.decode('latin-1')}")
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding != b"identity":
        raise UnsupportedEncoding(f"expected no Content-Encoding, got {encoding.decode('latin-1')}")
    return await receive_body(receive, headers, longest)


async def receive_body(receive: Receive, headers: Headers, longest: int, align: int = 0) -> Body:
    """The body as it came, of at most ``longest`` bytes: of one piece as it is, of several joined in one buffer.

    In a joined buffer, what follows the first ``align`` bytes lies where numbers may.

    Raises:
        TooLarge: it is longer, by its declared length or as it comes.
        ClientDisconnect: the client hung up before its end.
    """
    declared = headers.get(b"content-length", b"")
    length = int(declared) if declared.isdigit() else None
    if length is not None and length > longest:
        raise TooLarge(
            f"the body has {length:,} bytes; the limit (max_body_bytes) is {longest:,} bytes: "
            "it exceeds the maximum allowed"
        )
    chunk, more = await _next(receive)
    if not more and len(chunk) <= longest:
        return chunk
    buffer = _Buffer(longest if length is None else length, align, growing=length is None)
    buffer.add(chunk)
    while more:
        chunk, more = await _next(receive)
        buffer.add(chunk)
    return buffer.content()


async def _next(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


class _Buffer:
    """Pieces joined as they come: where the length was declared, into the place that is then known."""

    ALIGNMENT = 64  # bytes; a cache line

    def __init__(self, longest: int, align: int, growing: bool) -> None:
        self._longest = longest
        self._start = -align % self.ALIGNMENT
        self._place = self._start
        self._held = np.empty(self._start + (0 if growing else longest), np.uint8)

    def add(self, piece: bytes) -> None:
        end = self._place + len(piece)
        if end - self._start > self._longest:
            raise TooLarge(f"the body exceeds the maximum allowed (max_body_bytes), {self._longest:,} bytes")
        if end > len(self._held):
            grown = np.empty(min(2 * end, self._start + self._longest), np.uint8)
            grown[: self._place] = self._held[: self._place]
            self._held = grown
        self._held[self._place : end] = np.frombuffer(piece, np.uint8)
        self._place = end

    def content(self) -> memoryview:
        return self._held.data[self._start : self._place]
