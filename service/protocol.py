"""Short requests to the routes that carry tensors, answered as they come off the socket.

For requests that take some ten microseconds, a task and two messages each way cost more than the work. So where a
request has come whole, is of a kind that was understood before, and is known to be short, its answer is written at
once. All else goes the way of every request, ASGI, as if it had not been looked at.

A client says the same in the head of each of its requests. A head that was parsed once is known by its bytes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.body import Headers
from service.respond import SMALL, flat, join, length_of
from service.timing import Timing

if TYPE_CHECKING:
    from service.app import Application
    from service.endpoint import Endpoint

MOST_HEADS = 256  # remembered; what came first goes first
LONGEST_HEAD = 2048  # bytes


@dataclass(frozen=True, slots=True)
class Head:
    """What the head of a request says."""

    endpoint: "Endpoint"
    path: dict[str, Any]  # what the URL says to the endpoint
    headers: Headers
    length: int  # of the body


class Protocol(HttpToolsProtocol):
    """uvicorn's, but for requests that can be answered at once."""

    application: ClassVar["Application"]
    heads: ClassVar[dict[bytes, Head]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._between = True  # requests: the parser is at the beginning of one
        self._head: Head | None = None  # of a request that may yet be answered at once
        self._body: bytes | None = None  # its body; None until it has come
        self._data = b""  # that the parser is looking at
        self._answered_at = 0.0  # when the last such answer was written, by the loop's clock
        self._defaults: list[tuple[bytes, bytes]] = []
        self._default_header: bytes | None = b""  # None: every answer has to close its connection

    def data_received(self, data: bytes) -> None:
        if self._between and self._is_free():
            end = data.find(b"\r\n\r\n", 0, LONGEST_HEAD) + 4
            head = self.heads.get(data[:end])
            if head is not None and len(data) == end + head.length and self._answered(head, data[end:]):
                if self.timeout_keep_alive_task is None:
                    self.timeout_keep_alive_handler()
                return
        self._data = data
        super().data_received(data)
        self._data = b""
        if self._head is not None:  # more of it is to come
            self._go_on()

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection that is idle; what was answered at once since the timer was set has not set it again."""
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def on_message_begin(self) -> None:
        self._between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = self._short()
        if self._head is None:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._head is not None and self._body is None:
            self._body = body
            return
        if self._head is not None:
            self._go_on()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._between = True
        if self._head is not None:
            if self._body is not None and self._answered(self._head, self._body):
                self._remember(self._head, self._body)
                self._head = self._body = None
                self.server_state.total_requests -= 1  # which is counted again
                self.on_response_complete()
                return
            self._go_on()
        super().on_message_complete()

    def _is_free(self) -> bool:
        """Nothing is being answered on this connection, and the client takes what it is sent."""
        idle = self.cycle is None or self.cycle.response_complete
        return idle and not self.flow.write_paused and not self.transport.is_closing()

    def _short(self) -> Head | None:
        """The head that was parsed, if the request may be answered at once."""
        parser = self.parser
        if not self._is_free() or self.expect_100_continue or parser.get_method() != b"POST":
            return None
        if parser.get_http_version() != "1.1" or not parser.should_keep_alive() or parser.should_upgrade():
            return None
        headers = dict(self.headers)
        found = self.application.shortcut.find(self.url.decode("latin-1"))
        length = headers.get(b"content-length", b"")
        if found is None or not length.isdigit() or len(headers) != len(self.headers):
            return None
        return Head(*found, headers, int(length))

    def _go_on(self) -> None:
        """Take the way of every request."""
        body, self._head, self._body = self._body, None, None
        super().on_headers_complete()
        if body is not None:
            super().on_body(body)

    def _remember(self, head: Head, body: bytes) -> None:
        """Know the head again, if the data that was parsed was this request and nothing else."""
        if len(self._data) <= LONGEST_HEAD + len(body) and self._data.endswith(body):
            said = self._data[: len(self._data) - len(body)]
            if said.startswith(b"POST ") and said.find(b"\r\n\r\n") == len(said) - 4:
                if len(self.heads) >= MOST_HEADS:
                    self.heads.pop(next(iter(self.heads)), None)
                self.heads[said] = head

    def _answered(self, head: Head, body: bytes) -> bool:
        defaults = self._defaults_said()
        if defaults is None:
            return False
        timing = Timing()
        answer = head.endpoint.at_once(head.path, head.headers, body, timing)
        if answer is None:
            return False
        pieces, fields = answer
        length = length_of(pieces)
        said = b"HTTP/1.1 200 OK\r\n%b%bcontent-length: %d\r\nx-request-id: %b\r\nserver-timing: %b\r\n\r\n" % (
            defaults,
            b"".join([b"%b: %b\r\n" % field for field in fields]),
            length,
            self.application.request_ids.name(head.headers),
            timing.header(),
        )
        if length <= SMALL:
            self.transport.write(join([said, *pieces]))
        else:
            self.transport.write(said)
            for piece in pieces:
                self.transport.write(flat(piece))
        self.server_state.total_requests += 1
        self._answered_at = self.loop.time()
        return True

    def _defaults_said(self) -> bytes | None:
        """What uvicorn has every answer carry; it makes a new list each second."""
        defaults = self.server_state.default_headers
        if defaults is not self._defaults:
            self._defaults = defaults
            closes = any(name.lower() == b"connection" for name, _ in defaults)
            self._default_header = None if closes else b"".join([b"%b: %b\r\n" % field for field in defaults])
        return self._default_header


def speaking(application: "Application") -> type[Protocol]:
    """The protocol, for ``application``."""
    return type("Protocol", (Protocol,), {"application": application, "heads": {}})
