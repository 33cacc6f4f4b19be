"""A request's body: its media type, its encoding and its length are refused before it is read."""

from collections.abc import Mapping

import numpy as np
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from service.errors import Malformed, TooLarge, UnsupportedEncoding, UnsupportedMedia

Body = bytes | memoryview
Headers = Mapping[bytes, bytes]
JSON_LENGTH = "Inference-Header-Content-Length"  # what V2 calls the length of the first part
ALIGNMENT = 64  # bytes; a cache line


def hold_json(headers: Headers) -> None:
    """Hold a request to be plain JSON.

    Raises:
        UnsupportedMedia: it is not declared as JSON, or it is compressed.
    """
    media = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if media != b"application/json":
        raise UnsupportedMedia(f"expected Content-Type application/json, got {media.decode('latin-1')}")
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding != b"identity":
        raise UnsupportedEncoding(f"expected no Content-Encoding, got {encoding.decode('latin-1')}")


async def receive_body(receive: Receive, headers: Headers, longest: int) -> bytes:
    """The body as it came, of at most ``longest`` bytes.

    Raises:
        TooLarge: it is longer, by its declared length or as it comes.
        ClientDisconnect: the client hung up before its end.
    """
    _declared(headers, longest)
    return await _joined(receive, *await _next(receive), longest)


async def receive_parts(receive: Receive, headers: Headers, longest: int, first: int) -> tuple[bytes, Body]:
    """The body in two parts: its first bytes, as many as ``first``, and what follows them, lying where numbers may.

    Raises:
        Malformed: it ends before.
        TooLarge, ClientDisconnect: as above.
    """
    length = _declared(headers, longest)
    chunk, more = await _next(receive)
    if not more or length is None or length < first:
        return split(await _joined(receive, chunk, more, longest), first)
    coming = Coming(length, first)
    coming.add(chunk)
    while more:
        chunk, more = await _next(receive)
        coming.add(chunk)
    return coming.parts()


class Coming:
    """A body of known length, filled as its pieces come: joining them later would copy them again.

    What follows its first bytes, as many as ``first``, lies where numbers may.
    """

    def __init__(self, length: int, first: int) -> None:
        self._start = -first % ALIGNMENT
        self._middle = self._start + first
        self._held = np.empty(self._start + length, np.uint8)
        self._end = self._start

    def add(self, piece: Body) -> None:
        end = self._end + len(piece)
        self._held[self._end : end] = np.frombuffer(piece, np.uint8)
        self._end = end

    @property
    def missing(self) -> int:
        return len(self._held) - self._end

    def parts(self) -> tuple[bytes, Body]:
        return self._held[self._start : self._middle].tobytes(), self._held.data[self._middle : self._end]

    def so_far(self) -> bytes:
        return self._held[self._start : self._end].tobytes()


def split(body: bytes, first: int) -> tuple[bytes, bytes]:
    """The same of a body that is at hand."""
    if first > len(body):
        raise Malformed(f"{JSON_LENGTH} is {first}, more than the {len(body)} bytes of the body")
    return body[:first], body[first:]


async def _joined(receive: Receive, chunk: bytes, more: bool, longest: int) -> bytes:
    chunks, length = [chunk], len(chunk)
    while more and length <= longest:
        chunk, more = await _next(receive)
        chunks.append(chunk)
        length += len(chunk)
    if length > longest:
        raise TooLarge(f"the body exceeds the maximum allowed (max_body_bytes), {longest:,} bytes")
    return chunk if len(chunks) == 1 else b"".join(chunks)


def _declared(headers: Headers, longest: int) -> int | None:
    declared = headers.get(b"content-length", b"")
    length = int(declared) if declared.isdigit() else None
    if length is not None and length > longest:
        raise TooLarge(
            f"the body has {length:,} bytes; the limit (max_body_bytes) is {longest:,} bytes: "
            "it exceeds the maximum allowed"
        )
    return length


async def _next(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)
