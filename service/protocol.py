"""Short requests to the routes that carry tensors, answered as they come off the socket.

For requests that take some ten microseconds, a parser's callbacks, a task, and messages in and out cost more than the
work. A client says the same in the head of each of its requests: a head that was parsed once is known by its bytes.
Where the body that belongs to it has come whole, is of a kind that was understood before, and is known to be short
work, the answer is written at once. All else goes the way of every request, as if it had not been looked at.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from service.body import Body, Coming, Headers
from service.deadline import HEADERS as DEADLINES
from service.errors import HeedError
from service.limits import Limits
from service.respond import SMALL, flat, join, length_of
from service.timing import Timing

if TYPE_CHECKING:
    from service.app import Application
    from service.endpoint import Endpoint

END = b"\r\n\r\n"
MOST_HEADS = 256  # remembered; what came first goes first
LONGEST_HEAD = 2048  # bytes
LONGEST_BODY = 1 << 20  # bytes
PATIENCE = 1.0  # seconds for a body to come whole
REST = 16  # requests of a head that is not looked at, after one that was not short


@dataclass(slots=True)
class Head:
    """What the head of a request says."""

    endpoint: "Endpoint"
    path: dict[str, Any]  # what the URL says to the endpoint
    headers: Headers
    length: int  # of the body
    first: int  # bytes of it that are JSON
    rests: int = 0  # requests still to pass


@dataclass(slots=True)
class Started:
    """A request whose head is known and whose body has come in part."""

    said: bytes  # the head
    head: Head
    body: Coming
    patience: asyncio.TimerHandle


class Protocol(Limits):
    """uvicorn's, but for requests that can be answered at once. The limits are held for what the parser is given."""

    application: ClassVar["Application"]
    heads: ClassVar[dict[bytes, Head]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._between = True  # requests: the parser is at the beginning of one
        self._data = b""  # that the parser is looking at, if a request begins with it
        self._started: Started | None = None
        self._answered_at = 0.0  # when the last such answer was written, by the loop's clock
        self._defaults: list[tuple[bytes, bytes]] = []
        self._default_header: bytes | None = b""  # None: every answer has to close its connection

    def data_received(self, data: bytes) -> None:
        if self._started is not None:
            self._go_on(self._started, data)
        elif not self._taken(data):
            self._parse(data)

    def on_message_begin(self) -> None:
        self._between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._learn()
        self._data = b""  # what follows in it may look like a head and be none

    def on_message_complete(self) -> None:
        self._between = True
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Closes a connection that is idle; what was answered at once since the timer was set has not set it again."""
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if left > 0 or self._started is not None:
            self.timeout_keep_alive_task = self.loop.call_later(max(left, PATIENCE), self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        self._give_up()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._started is not None:
            self._started.patience.cancel()
            self._started = None
        super().connection_lost(exc)

    def _taken(self, data: bytes) -> bool:
        """The data begins a request whose head is known: it is answered, or its body waited for."""
        if not self._between or self.flow.write_paused or not (self.cycle is None or self.cycle.response_complete):
            return False
        end = data.find(END, 0, LONGEST_HEAD) + len(END)
        head = self.heads.get(data[:end])
        if head is None or self.transport.is_closing():
            return False
        if head.rests:
            head.rests -= 1
            return False
        missing = end + head.length - len(data)
        if missing == 0:
            middle = end + head.first
            return self._answered(head, data[end:middle], data[middle:])
        if missing < 0:  # another request follows
            return False
        body = Coming(head.length, head.first)
        body.add(memoryview(data)[end:])
        self._started = Started(data[:end], head, body, self.loop.call_later(PATIENCE, self._give_up))
        return True

    def _go_on(self, started: Started, data: bytes) -> None:
        body = started.body
        if len(data) > body.missing:
            self._give_up()
            self._parse(data)
            return
        body.add(data)
        if body.missing == 0 and self._answered(started.head, *body.parts()):
            started.patience.cancel()
            self._started = None
        elif body.missing == 0:
            self._give_up()

    def _give_up(self) -> None:
        """What has come goes the way of every request."""
        started, self._started = self._started, None
        if started is not None:
            started.patience.cancel()
            self._parse(started.said)
            self._parse(started.body.so_far())

    def _parse(self, data: bytes) -> None:
        self._data = data if self._between else b""
        super().data_received(data)
        self._data = b""

    def _learn(self) -> None:
        """Know the head that was just parsed, if a request like it might be answered at once."""
        said = self._data[: self._data.find(END, 0, LONGEST_HEAD) + len(END)]
        headers = dict(self.headers)
        if not said.startswith(b"POST %b HTTP/1.1\r\n" % self.url) or said.count(b"\r\n") != len(headers) + 2:
            return  # it came in pieces, or has a name twice, or lines that are none of the parser's
        if self.expect_100_continue or self.parser.should_upgrade() or not self.parser.should_keep_alive():
            return
        length = headers.get(b"content-length", b"")
        found = self.application.shortcut.find(self.scope["path"])
        if found is None or not length.isdigit() or int(length) > LONGEST_BODY or said in self.heads:
            return
        access = self.application.access
        if access and access.refusal(headers, self.scope["path"], "POST"):
            return
        try:
            first = found[0].first(headers, int(length))
        except HeedError:
            return
        if first > int(length) or not headers.keys().isdisjoint(DEADLINES):
            return
        if len(self.heads) >= MOST_HEADS:
            self.heads.pop(next(iter(self.heads)), None)
        self.heads[said] = Head(*found, headers, int(length), first)

    def _answered(self, head: Head, content: bytes, attached: Body) -> bool:
        defaults = self._defaults_said()
        if defaults is None:
            return False
        timing = Timing()
        answer = head.endpoint.at_once(head.path, head.headers, content, attached, timing)
        if answer is None:
            head.rests = REST
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
        self.since = math.inf
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_handler()
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
    return type("Protocol", (Protocol,), {"application": application, "heads": application.heads})
