"""How long a request may take to come, and how long its head may be: a connection that is past it is closed.

uvicorn has neither limit. The clock is looked at once a second for all connections, so that a request pays for none.
"""

import asyncio
import math
import time
from http import HTTPStatus
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.settings import Settings

TOO_LONG = {
    True: (431, "The head of the request is longer than allowed (max_header_bytes)"),
    False: (413, "The chunks with their heads and trailers are longer than allowed (twice max_body_bytes)"),
}


class Limits(HttpToolsProtocol):
    """uvicorn's protocol of one connection, within limits."""

    max_header_bytes: ClassVar[int]
    max_wire_bytes: ClassVar[int]  # of a chunked message, whose trailers and whose chunks' heads no body limit counts
    receive_seconds: ClassVar[float]
    _most: int | None  # bytes that may come now; None = they are counted elsewhere, as a body's are

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._expect()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._most is not None:
            self._bytes += len(data)
            if self._bytes > self._most:
                self._refuse(*TOO_LONG[self._most == self.max_header_bytes], f"{self._most:,} bytes")

    def on_message_begin(self) -> None:
        self._expect()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._most = None
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._most = self.max_wire_bytes

    def on_message_complete(self) -> None:
        self.since = math.inf
        super().on_message_complete()

    def _expect(self) -> None:
        self.since = time.monotonic()  # when what is awaited began to come; infinity while nothing is
        self._bytes = 0
        self._most = self.max_header_bytes

    @property
    def _spoken(self) -> bool:
        return bool(self.scope)

    def look(self, now: float) -> None:
        """Close it if what is awaited should have come by ``now``, of ``time.monotonic``."""
        if now - self.since <= self.receive_seconds:
            return
        if self.flow.read_paused:  # it is this end that does not read
            self.since = now
        elif not self._spoken:
            self.transport.close()
        else:
            self._refuse(
                408, "The request did not come within the time allowed (receive_seconds)", f"{self.receive_seconds:g} s"
            )

    def _refuse(self, status: int, what: str, limit: str) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            words = f"{what}, {limit}."
            text = f"{head}Connection: close\r\nContent-Length: {len(words)}\r\n\r\n{words}"
            self.transport.write(text.encode())
        self.transport.close()


def limited(protocol: type[Limits], settings: Settings) -> type[Limits]:
    """``protocol``, within the limits of ``settings``."""
    limits = {
        "max_header_bytes": settings.max_header_bytes,
        "max_wire_bytes": settings.max_header_bytes + 2 * settings.max_body_bytes,
        "receive_seconds": settings.receive_seconds,
    }
    return type("Limited", (protocol,), limits)
