"""Limits of one connection: the length of a head, the time for a request to come, and for its answer to be taken.

uvicorn has none of these limits. A connection that exceeds one is closed. The times are checked once a second for all
connections, so that a request does not pay for them. The error for a request that exceeds a limit, or is no HTTP, is
written after the answers to the requests before it.
"""

import asyncio
import fcntl
import math
import select
import socket
import sys
import termios
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException

from service.base.budget import MemoryBudget, Reservation
from service.base.errors import HeedError, NotEnoughMemory
from service.base.messages import size_words
from service.http.connection import Connection, RequestState
from service.http.response import error_response
from service.http.tls import BUFFERS, CONNECTION_BYTES
from service.settings import Settings
from service.telemetry.counters import RequestCounters

MAX_HEADER_BYTES = 64 << 10  # of the first line and the headers of a request
DISCARD_DELAY_S = 0.05  # between two reads of a refused body, each of 256 KiB at most


class LimitedProtocol(Connection):
    """The protocol of one connection, within the limits of ``settings``; ``counts`` has what they refuse.

    ``budget`` has the heads of requests that have not come whole, the bytes behind a request that is answered, and the
    buffers of TLS.
    ``on_closed`` is called when the connection closes.
    """

    def __init__(
        self,
        *args: Any,
        settings: Settings,
        counts: RequestCounters,
        budget: MemoryBudget,
        on_closed: Callable[[], None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, max_chunked_bytes=MAX_HEADER_BYTES + 2 * settings.max_body_bytes, **kwargs)
        self.max_header_bytes = MAX_HEADER_BYTES
        self.read_timeout_seconds = settings.transfer_timeout_seconds
        self.write_timeout_seconds = settings.transfer_timeout_seconds
        self.counts = counts
        self._received = Reservation(budget)
        self._tls = Reservation(budget)
        self._buffered: float = math.inf  # bytes that TLS has buffers for; infinity without TLS
        self._head_bytes = 0  # that have come of the request's head, with the line breaks before it
        self._final_response = b""  # of a refused request; it is written after the answers to those before it
        self._on_closed = on_closed

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._awaited_since = time.monotonic()  # when a head or body began to come; infinity while none is awaited
        self._unwritten = 0, 0  # bytes, in this process and in the kernel, when they last changed
        self._unwritten_since = self._awaited_since
        super().connection_made(transport)
        if self._paced is not None:
            self._buffered = 0
            self._reserve(self._tls, CONNECTION_BYTES)

    def data_received(self, data: bytes) -> None:
        if len(data) > self._buffered:
            self._buffered = len(data)
            self._reserve(self._tls, CONNECTION_BYTES + BUFFERS * len(data))
        if self._state is RequestState.REFUSED:
            return
        try:
            super().data_received(data)
        except MemoryError:
            self._refuse_for_memory()
        self._reserve_received()
        if self._state is RequestState.BODY and not self._is_unanswered and not self.flow.read_paused:
            self.flow.pause_reading()  # the rest of a refused body is read, but slowly: others wait for it
            self.loop.call_later(DISCARD_DELAY_S, self.flow.resume_reading)

    def _feed(self, piece: memoryview | bytes) -> None:
        if self._state in (RequestState.IDLE, RequestState.HEAD):
            self._head_bytes += len(piece)
            if self._head_bytes > self.max_header_bytes:
                longest = size_words(self.max_header_bytes)
                self._refuse(431, f"The head of the request is longer than the {longest} allowed.", "max_header_bytes")
                return
        super()._feed(piece)

    def connection_lost(self, exc: Exception | None) -> None:
        self._received.release()
        self._tls.release()
        if self._on_closed is not None:
            self._on_closed()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn does not, after a reset: the timer would keep this protocol
        self.cycle = None  # type: ignore[assignment]  # it refers to this protocol

    def on_message_begin(self) -> None:
        self._awaited_since = time.monotonic()
        super().on_message_begin()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._state is RequestState.REFUSED:
            self._write_final_response()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    @property
    def is_idle(self) -> bool:
        """Nothing has come that is still to be answered, nothing waits in the socket, and all answers are written."""
        has_begun = self._state in (RequestState.HEAD, RequestState.DEFERRED)
        if has_begun or self._is_unanswered or self.flow.read_paused or self.transport.is_closing():
            return False
        return not self.transport.get_write_buffer_size() and not self._has_event(select.POLLIN)

    @property
    def is_writing(self) -> bool:
        """The client has not taken all that was written of a response."""
        return bool(self.transport.get_write_buffer_size()) or self.flow.write_paused

    def announce_close(self) -> None:
        """Have the answer that is being worked on announce that the connection will be closed."""
        if self._is_unanswered and not self.cycle.response_started and not self.has_unparsed:
            self.cycle.keep_alive = False

    def close_if_overdue(self, now: float) -> None:
        """Close it if what is awaited should have come, or gone, by ``now``, of ``time.monotonic``."""
        self._close_if_stalled(now)
        self._close_if_hung_up()
        if now - self._awaited_since <= self.read_timeout_seconds:
            return
        if self.flow.read_paused:  # it is this end that does not read
            self._awaited_since = now
        elif self._state is RequestState.IDLE:  # no request has begun
            self.transport.close()
        else:
            seconds = f"{self.read_timeout_seconds:g} s"
            self._refuse(
                408,
                f"The request did not arrive within {seconds} (transfer_timeout_seconds).",
                "read_timeout_seconds",
            )

    def _end_request(self) -> None:
        self._awaited_since, self._head_bytes = math.inf, 0
        super()._end_request()

    def _close_if_stalled(self, now: float) -> None:
        """Close it if the client takes nothing of its answers, which stay in memory as long as they are not sent.

        Under TLS they lie in a transport that is not seen from here, so the kernel is asked what it has yet to send.
        """
        waiting = self.transport.get_write_buffer_size()
        if not waiting and self.scheme == "http":
            self._unwritten = 0, 0
            return
        unwritten = waiting, _unsent_bytes(self.transport.get_extra_info("socket"))
        if unwritten != self._unwritten or not any(unwritten):
            self._unwritten, self._unwritten_since = unwritten, now
        elif now - self._unwritten_since > self.write_timeout_seconds:
            self._unwritten_since = math.inf
            self.counts.refused["write_timeout_seconds"] += 1
            self.transport.abort()

    def _close_if_hung_up(self) -> None:
        """Close it if the client has closed it: the transport does not see that while it does not read on."""
        if self._reading.is_blocked and not self.transport.is_closing() and self._has_event(select.POLLRDHUP):
            self.transport.close()

    def _refuse(self, status: int, detail: str, limit: str = "") -> None:
        """Write an error in place of the answer to the request that is coming, unless it has been answered already.

        It is an error of the API that the URL names, as far as the URL was read.
        """
        if self._state is RequestState.REFUSED:
            return
        is_in_body, self._state = self._state is RequestState.BODY, RequestState.REFUSED
        if limit:
            self.counts.refused[limit] += 1
        self._awaited_since = math.inf
        self._unparsed, self._position = b"", 0
        self._received.release()
        retry = {"Retry-After": "1"} if status == 503 else None
        answer = error_response(self.url.decode("latin-1"), HTTPException(status, detail, retry))
        fields = {**dict(self.server_state.default_headers), **dict(answer.raw_headers), b"connection": b"close"}
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(), *map(b": ".join, fields.items())]
        if not is_in_body or not self.cycle.response_started:
            has_body = not is_in_body or self.scope["method"] != "HEAD"
            self._final_response = b"\r\n".join([*lines, b"", bytes(answer.body) if has_body else b""])
        if is_in_body or not self._is_unanswered:
            self._write_final_response()

    def _parse_rest(self) -> None:
        try:
            super()._parse_rest()
        except MemoryError:
            self._refuse_for_memory()
        self._reserve_received()

    def _reserve_received(self) -> None:
        """Reserve the head of a request that has not come whole, and what came behind a request that is answered."""
        size = self._head_bytes + len(self._unparsed) - self._position
        if size:
            self._reserve(self._received, size)
        elif self._received.bytes:
            self._received.release()

    def _reserve(self, reservation: Reservation, size: int) -> None:
        """Reserve ``size`` bytes in all, or refuse the request that is coming."""
        try:
            if size > reservation.bytes:
                reservation.add(size - reservation.bytes)
        except HeedError as error:  # counted by the budget
            self._refuse(error.status, str(error))

    def _refuse_for_memory(self) -> None:
        error = NotEnoughMemory()
        self._refuse(error.status, str(error), error.limit)

    def _write_final_response(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self._final_response)
            self.transport.close()


def _unsent_bytes(raw: socket.socket | None) -> int:
    """Bytes that the kernel has yet to send, or that the client's machine has not acknowledged."""
    if raw is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # it is closed
        return 0
