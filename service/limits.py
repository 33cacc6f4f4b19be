"""How long a request may take to come, and how long its head may be: a connection that is past it is closed.

uvicorn has neither limit. The clock is looked at once a second for all connections, so that a request pays for none.
What is said to a request that is past a limit, or is no HTTP, follows the answers to those that came before it.
"""

import asyncio
import math
import time
from collections import deque
from http import HTTPStatus
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.counts import Counts
from service.settings import Settings

TOO_LONG = {
    True: (431, "max_header_bytes", "The head of the request is longer than allowed (max_header_bytes)"),
    False: (
        413,
        "max_body_bytes",
        "The chunks with their heads and trailers are longer than allowed (twice max_body_bytes)",
    ),
}


class Limits(HttpToolsProtocol):
    """uvicorn's protocol of one connection, within limits."""

    max_header_bytes: ClassVar[int]
    max_wire_bytes: ClassVar[int]  # of a chunked message, whose trailers and whose chunks' heads no body limit counts
    receive_seconds: ClassVar[float]
    counts: ClassVar[Counts]
    _most: int | None  # bytes that may come now; None = they are counted elsewhere, as a body's are

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._in_body = False
        self._unanswered: deque[RequestResponseCycle] = deque()  # requests whose head has come, in that order
        self._last: bytes | None = None  # what is still to be said, before the connection is closed
        self._expect()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._last is not None:
            return
        super().data_received(data)
        if self._most is not None:
            self._bytes += len(data)
            if self._bytes > self._most:
                status, limit, what = TOO_LONG[self._most == self.max_header_bytes]
                self._refuse(status, f"{what}, {self._most:,} bytes.", limit)

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self._unanswered:  # uvicorn tells only the last one
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._expect()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._most = None
        super().on_headers_complete()
        self._in_body = True
        self._unanswered.append(self.cycle)

    def on_chunk_header(self) -> None:
        self._most = self.max_wire_bytes

    def on_message_complete(self) -> None:
        self.since = math.inf
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._unanswered:
            self._unanswered.popleft()
        super().on_response_complete()
        self._part()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

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
            seconds = f"{self.receive_seconds:g} s"
            self._refuse(
                408,
                f"The request did not come within the time allowed (receive_seconds), {seconds}.",
                "receive_seconds",
            )

    def _refuse(self, status: int, words: str, limit: str = "") -> None:
        """Say so in place of the answer to the request that is coming, unless it has been answered already."""
        if self._last is not None:
            return
        if limit:
            self.counts.refused[limit] += 1
        self.since = math.inf
        fields = dict(self.server_state.default_headers) | {
            b"content-type": b"text/plain; charset=utf-8",
            b"content-length": b"%d" % len(words),
            b"connection": b"close",
        }
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(), *map(b": ".join, fields.items())]
        self._last = b"\r\n".join([*lines, b"", words.encode()])
        if self._in_body:
            if self.cycle.response_started:
                self._last = b""
            elif self.pipeline:
                self.pipeline.popleft()  # the one that came last
            if not self.cycle.response_complete:
                self._unanswered.pop()
        self._part()

    def _part(self) -> None:
        """Say the last word, if there is one, once all is answered that came before."""
        if self._last is not None and not self._unanswered and not self.transport.is_closing():
            self.transport.write(self._last)
            self.transport.close()


def limited(protocol: type[Limits], settings: Settings, counts: Counts) -> type[Limits]:
    """``protocol``, within the limits of ``settings``; ``counts`` has what they refuse."""
    limits = {
        "max_header_bytes": settings.max_header_bytes,
        "max_wire_bytes": settings.max_header_bytes + 2 * settings.max_body_bytes,
        "receive_seconds": settings.receive_seconds,
        "counts": counts,
    }
    return type("Limited", (protocol,), limits)
