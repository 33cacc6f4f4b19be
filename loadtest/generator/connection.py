"""An HTTP/1.1 connection that posts one request after the other and reports when each was answered."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools


@dataclass(frozen=True, slots=True)
class Request:
    """A request's head and body in bytes, and the index of its kind among the scenario's requests."""

    wire: bytes
    kind: int


class Connection(asyncio.Protocol):
    """Reports to three callbacks.

    ``on_idle`` is called when the connection can post: after it was established, and after each response. ``on_done``
    is called before that with the request, its start time in seconds, and the response's status or an error message.
    ``on_lost`` is called once, when the connection is closed.
    """

    def __init__(
        self,
        on_done: Callable[[Request, float, int | str], None],
        on_idle: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
    ) -> None:
        self._on_done, self._on_idle, self._on_lost = on_done, on_idle, on_lost
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._request: Request | None = None
        self._start_s = self.sent_s = 0.0
        self.responses = 0

    def post(self, request: Request, start_s: float, now_s: float) -> None:
        """Send ``request``; its latency counts from ``start_s``, when it was due, on the clock of perf_counter."""
        self._request, self._start_s, self.sent_s = request, start_s, now_s
        self._transport.write(request.wire)

    @property
    def is_busy(self) -> bool:
        """Whether a request has no response yet."""
        return self._request is not None

    def abort(self, reason: str) -> None:
        """Close the connection at once; a request without a response fails with ``reason``."""
        self._finish(reason)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._on_idle(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort("not HTTP")

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue
            return
        self.responses += 1
        self._finish(status)
        if self._parser.should_keep_alive():
            self._on_idle(self)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._finish("connection lost")
        self._on_lost(self)

    def _finish(self, result: int | str) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._on_done(request, self._start_s, result)
