"""An HTTP/1.1 connection that posts one request after the other and reports when each was answered."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools

TOKEN, ERROR = b"event: token\n", b"event: error\n"  # lines of a stream


@dataclass(frozen=True, slots=True)
class Request:
    """A request's head and body in bytes, the index of its kind, and whether its answer is a stream of tokens."""

    wire: bytes
    kind: int
    is_stream: bool = False


class Connection(asyncio.Protocol):
    """Reports to four callbacks.

    ``on_idle`` is called when the connection can post: after it was established, and after each response. ``on_done``
    is called before that with the request, its start time in seconds, and the response's status or an error message.
    ``on_lost`` is called once, when the connection is closed. ``on_tokens`` is called when tokens of a stream arrive,
    with the start time of the request, the time of the previous token (0 for the first), and their number.
    """

    def __init__(
        self,
        on_done: Callable[[Request, float, int | str], None],
        on_idle: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
        on_tokens: Callable[[float, float, int], None],
    ) -> None:
        self._on_done, self._on_idle, self._on_lost, self._on_tokens = on_done, on_idle, on_lost, on_tokens
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._request: Request | None = None
        self._start_s = self.active_s = 0.0
        self._token_s = 0.0
        self._tail, self._has_failed = b"", False
        self.responses = 0

    def post(self, request: Request, start_s: float, now_s: float) -> None:
        """Send ``request``; its latency counts from ``start_s``, when it was due, on the clock of perf_counter."""
        self._request, self._start_s, self.active_s = request, start_s, now_s
        self._token_s, self._tail, self._has_failed = 0.0, b"", False
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

    def on_body(self, body: bytes) -> None:
        if self._request is None or not self._request.is_stream:
            return
        text = self._tail + body
        self._tail = text[1 - len(TOKEN) :]  # a line may be cut
        self._has_failed |= ERROR in text
        if count := text.count(TOKEN):
            self._on_tokens(self._start_s, self._token_s, count)
            self._token_s = self.active_s = time.perf_counter()

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue
            return
        self.responses += 1
        self._finish("an error in the stream" if self._has_failed else status)
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
