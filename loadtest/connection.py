"""One HTTP/1.1 connection that posts one request after the other and tells when each was answered."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools


@dataclass(frozen=True, slots=True)
class Request:
    """What goes over the wire, head and body, and which of the scenario's requests it is."""

    wire: bytes
    kind: int


class Connection(asyncio.Protocol):
    """``free`` is called when it can post: when it was made, and after each answer.

    ``done`` is called with the request, the second it began, and a status, or what went wrong; before ``free``.
    ``lost`` is called once, when it is closed.
    """

    def __init__(
        self,
        done: Callable[[Request, float, int | str], None],
        free: Callable[["Connection"], None],
        lost: Callable[["Connection"], None],
    ) -> None:
        self._done, self._free, self._lost = done, free, lost
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._request: Request | None = None
        self._began = self.sent = 0.0
        self.answers = 0

    def post(self, request: Request, began: float, now: float) -> None:
        """Send ``request``, which should have begun at the second ``began``."""
        self._request, self._began, self.sent = request, began, now
        self._transport.write(request.wire)

    @property
    def waits(self) -> bool:
        """For an answer."""
        return self._request is not None

    def abort(self, why: str) -> None:
        """Close at once; a request that waits for its answer went wrong like this."""
        self._end(why)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._free(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort("not HTTP")

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue
            return
        self.answers += 1
        self._end(status)
        if self._parser.should_keep_alive():
            self._free(self)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._end("connection lost")
        self._lost(self)

    def _end(self, how: int | str) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._done(request, self._began, how)
