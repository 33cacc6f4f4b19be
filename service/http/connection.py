"""The bytes of one connection, divided into requests that are parsed and answered one after another.

uvicorn gives its parser whatever has come. Here the parser gets the head of a request, then its body, then nothing more
until that request is answered. So the length of a head is known to the byte, other connections have their turn between
many requests in one packet, and a request that asks for another protocol keeps its body.
"""

import asyncio
import logging
import math
import re
import select
from enum import Enum, auto
from functools import partial
from types import SimpleNamespace
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http.chunks import ChunkedBody, WrongFraming
from service.http.head import MAX_HEADER_FIELDS, UnsupportedRequest, body_length
from service.http.tls import LimitedSession, PacedTransport
from service.telemetry.event_loop import EventLoopClock
from service.telemetry.logs import MALFORMED, peer

CALLBACKS = [name for name in dir(HttpToolsProtocol) if name.startswith("on_")]
END_OF_HEAD = b"\r\n\r\n"
BLANKS = b" \t"
LINE_BREAKS = re.compile(rb"[\r\n]+")  # before a request, which the parser ignores


class RequestState(Enum):
    """How far the request that a connection reads has come.

    ========  ========  ===========================================================  =======================
    from      to        when                                                         changed in
    ========  ========  ===========================================================  =======================
    IDLE      HEAD      the parser gets the first byte of a request                  ``on_message_begin``
    HEAD      BODY      the head is complete, and an ASGI task gets the body         ``on_headers_complete``
    HEAD      DEFERRED  the head is complete, and the connection keeps the body      ``on_headers_complete``
    IDLE      DEFERRED  the same, for a head whose bytes are known                   ``_defer_known``
    DEFERRED  BODY      the task is started after all                                ``_start_deferred``
    DEFERRED  IDLE      the same, for a known head: the parser gets it next          ``_start_deferred``
    DEFERRED  IDLE      the connection has answered the request                      ``_end_request``
    BODY      IDLE      the body is complete                                         ``_end_request``
    any       REFUSED   a limit is exceeded, or it is no HTTP: nothing more is read  ``_refuse``
    ========  ========  ===========================================================  =======================

    In IDLE, the request before may still wait for its answer (``Connection._is_answering``).
    """

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    DEFERRED = auto()
    REFUSED = auto()


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, given one request at a time. Subclasses decide how a request is refused.

    A subclass may also defer the ASGI task of a request whose head has come (``_defer``). Then the subclass gets the
    body in place of the parser (``_add_to_deferred``), and answers the request itself or starts the task after all
    (``_answer_deferred``).
    """

    def __init__(self, *args: Any, clock: EventLoopClock, max_chunked_bytes: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock = clock
        self._max_chunked_bytes = max_chunked_bytes
        self._arrived_ns = 0  # when the request that is coming came to this machine
        self.parser = self._new_parser()
        self._state = RequestState.IDLE
        self.url = b""  # of the request that is coming, as far as it was read
        self._unparsed = b""
        self._position = 0  # in the unparsed bytes: those before it have been parsed
        self._tail = b""  # the last bytes parsed of a head, whose end may lie in two pieces
        self._body_left: int | None = None  # bytes of a body whose length is declared
        self._chunks: ChunkedBody | None = None  # of a body whose length is not declared
        self._unsupported: UnsupportedRequest | None = None
        self._paced: PacedTransport | None = None  # under TLS
        self._idle_since = math.inf  # when the last request was answered, by the loop's clock; infinity while not idle

    def _refuse(self, status: int, detail: str, limit: str = "") -> None:
        """Answer the request that is coming with an error, and close the connection."""
        raise NotImplementedError

    def _defer(self) -> bool:
        """Whether the request whose head has come waits for its body without an ASGI task."""
        return False

    def _add_to_deferred(self, piece: memoryview) -> None:
        """Keep a part of the deferred request's body."""
        raise NotImplementedError

    def _answer_deferred(self) -> None:
        """The deferred request has come whole: answer it, or start its task."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._session = transport.get_extra_info("ssl_object")
        if isinstance(self._session, LimitedSession):
            self._session.on_turn_end = partial(self.loop.call_soon, self._begin_turn)
            transport = self._paced = PacedTransport(transport, self)
        super().connection_made(transport)
        self.flow = self._reading = _Reading(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._paced is not None:
            self._paced.drop()
            del self._session.on_turn_end  # it refers to this protocol
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        if self._paced is not None:
            self._paced.pause()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._paced is None or self._paced.resume():
            super().resume_writing()

    def _begin_turn(self) -> None:
        """Read on what TLS has of this connection."""
        self._session.begin_turn()
        if not self.flow.read_paused:  # else it is read on with the next resume
            self.transport.pause_reading()
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._state is RequestState.IDLE:
            self._arrived_ns = self._clock.arrival_ns(self.loop, self.transport)
        self._unparsed = self._unparsed[self._position :] + data if self.has_unparsed else data
        self._position = 0
        self._parse()

    def on_header(self, name: bytes, value: bytes) -> None:
        name, value = name.lower(), value.strip(BLANKS)
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        if len(self.headers) == MAX_HEADER_FIELDS:
            self._unsupported = UnsupportedRequest(431, f"The head has more than {MAX_HEADER_FIELDS} fields.")
            raise self._unsupported
        self.headers.append((name, value))

    def on_message_begin(self) -> None:
        self._state = RequestState.HEAD
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        if self._defer():
            self._state = RequestState.DEFERRED
        else:
            self._start_task()
            self._state = RequestState.BODY  # only now: if the task finds no memory, the connection answers

    def on_message_complete(self) -> None:
        self._end_request()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self.cycle.body = bytearray()  # of a refused request; the cycle is kept until the next one
        if self.transport.is_closing():
            return
        if self.has_unparsed:
            self.loop.call_soon(self._parse_rest)  # other connections have their turn in between
        else:
            self.flow.resume_reading()
            self._wait_for_request()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle for long enough. The timer is not set anew for each request.

        A request that waits in the socket is answered: when it was sent, the connection was open.
        """
        self.timeout_keep_alive_task = None
        remaining_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if remaining_s <= 0 and not self.transport.is_closing() and self._has_event(select.POLLIN):
            remaining_s = self.timeout_keep_alive
        if remaining_s <= 0:
            super().timeout_keep_alive_handler()
        elif math.isfinite(remaining_s):
            self._set_idle_timer(remaining_s)

    @property
    def has_unparsed(self) -> bool:
        """Whether bytes have come that the parser has not been given."""
        return self._position < len(self._unparsed)

    @property
    def _is_unanswered(self) -> bool:
        """Whether a task answers a request, and has not yet written all of its answer."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_answering(self) -> bool:
        """Whether a request has come whole, and its answer is not written."""
        return self._state is RequestState.IDLE and self._is_unanswered

    @property
    def _is_between_requests(self) -> bool:
        """Whether all requests are answered, and nothing has come of another."""
        return self._state is RequestState.IDLE and not self._unparsed and not self._is_unanswered

    @property
    def _is_ending(self) -> bool:
        """Whether nothing that comes is read any more."""
        return self._state is RequestState.REFUSED or self.transport.is_closing()

    def _end_request(self) -> None:
        """The request has come whole."""
        self._state, self._body_left, self._chunks = RequestState.IDLE, None, None

    def _start_task(self) -> None:
        """Start the ASGI task of the request whose head was parsed last."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # makes the scope, and empties the rest
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        self.scope["state"]["arrived_ns"] = self._arrived_ns
        super().on_headers_complete()
        if self._body_left is not None and len(self._unparsed) - self._position > self._body_left:
            # At the end of the server every answer closes its connection, but not before one that is waited for.
            self.cycle.default_headers = [field for field in self.cycle.default_headers if field[0] != b"connection"]

    def _parse(self) -> None:
        """Give the parser what has come of one request after another, up to one that is not answered at once."""
        data, view = self._unparsed, memoryview(self._unparsed)
        while self._position < len(data) and not self._is_ending:
            if self._is_answering:  # else a client that sends ahead would fill the memory
                self._reading.is_blocked = True
                self._reading.pause_reading()
                return
            start = self._position
            if self._chunks is not None:
                self._feed_chunks(self._chunks, data, start)
                continue
            end = self._position = self._end_of_piece(data, start)
            if self._state is RequestState.DEFERRED:
                self._add_to_deferred(view[start:end])
            else:
                self._feed(view[start:end])
            if self._state is RequestState.DEFERRED and not self._body_left:
                self._answer_deferred()
        if not self.has_unparsed or self._is_ending:
            self._unparsed, self._position = b"", 0
        if self._state is not RequestState.IDLE:
            self._idle_since = math.inf
        elif not self._is_unanswered and not self.transport.is_closing():
            self._wait_for_request()

    def _parse_rest(self) -> None:
        """Parse what came while a request was answered, and read on once all of it is parsed."""
        self._reading.is_blocked = False
        self._reading.resume_reading()
        self._parse()

    def _wait_for_request(self) -> None:
        """All requests that have come are answered: close the connection if no other begins in time."""
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._set_idle_timer(self.timeout_keep_alive)

    def _set_idle_timer(self, delay_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(delay_s, self.timeout_keep_alive_handler)

    def _end_of_piece(self, data: bytes, start: int) -> int:
        """Where the next piece for the parser ends: with a body of known length, or with the empty line of a head."""
        if self._body_left is not None:
            end = min(start + self._body_left, len(data))
            self._body_left -= end - start
            return end
        if self._state is RequestState.IDLE and (breaks := LINE_BREAKS.match(data, start)):
            return breaks.end()
        end = -1
        if self._tail:
            split = (self._tail + data[start : start + len(END_OF_HEAD) - 1]).find(END_OF_HEAD)
            end = start + split + len(END_OF_HEAD) - len(self._tail) if split >= 0 else -1
        if end < 0:
            place = data.find(END_OF_HEAD, start)
            end = place + len(END_OF_HEAD) if place >= 0 else -1
        if end < 0:
            self._tail = (self._tail + data[max(start, len(data) - len(END_OF_HEAD) + 1) :])[1 - len(END_OF_HEAD) :]
            return len(data)
        self._tail = b""
        return end

    def _feed_chunks(self, chunks: ChunkedBody, data: bytes, start: int) -> None:
        """Give the parser the next chunks. Only with the end of the last it can complete the message."""
        try:
            self._position, piece = chunks.take(data, start)
        except WrongFraming as wrong:
            MALFORMED.log(logging.WARNING, "malformed request rejected: %s", wrong.reason, **peer(self.client))
            self._refuse(wrong.status, wrong.reason, wrong.limit)
            return
        if piece:
            self._feed(memoryview(piece))

    def _feed(self, piece: memoryview | bytes) -> None:
        """Give the parser a piece that ends no later than the head, or the message, that it belongs to."""
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            Connection._feed(self, self._head_without_upgrade())  # whose bytes are counted already
        except httptools.HttpParserError as error:
            if self._unsupported is not None:
                status, reason = self._unsupported.status, self._unsupported.reason
                self._unsupported = None  # its traceback holds this connection, with the head that it refuses
                self._refuse(status, reason)
            elif isinstance(error.__context__, MemoryError):
                raise error.__context__ from None
            else:
                MALFORMED.log(logging.WARNING, "malformed request rejected: %s", error, **peer(self.client))
                self.send_400_response("Invalid HTTP request received.")

    def _head_without_upgrade(self) -> bytes:
        """The head that was just parsed, without its wish for another protocol, for a new parser.

        A server that does not change the protocol ignores ``Upgrade`` (RFC 9110, 7.8), but the parser always takes
        what follows such a head for the other protocol.
        """
        method, version, headers = self.parser.get_method(), self.parser.get_http_version(), self.headers
        self.parser = self._new_parser()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        lines += [b"%b: %b" % field for field in headers if field[0] != b"upgrade"]
        return b"\r\n".join([*lines, END_OF_HEAD])[: -len(b"\r\n")]

    def _new_parser(self) -> httptools.HttpRequestParser:
        callbacks = {name: getattr(self, name) for name in CALLBACKS}
        callbacks |= {"on_headers_complete": self._headers_complete, "on_message_complete": self._message_complete}
        parser = httptools.HttpRequestParser(SimpleNamespace(**callbacks))
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return parser

    def _headers_complete(self) -> None:
        try:
            if not self.parser.should_upgrade():
                self._body_left = body_length(self.url, self.parser.get_http_version(), self.headers)
                self._chunks = ChunkedBody(self._max_chunked_bytes) if self._body_left is None else None
                self.on_headers_complete()
            elif self.parser.get_method() == b"CONNECT":
                raise UnsupportedRequest(501, "CONNECT is not supported: this server is not a proxy.")
        except UnsupportedRequest as unsupported:
            self._unsupported = unsupported
            raise

    def _message_complete(self) -> None:
        if not self.parser.should_upgrade() and self._state is not RequestState.DEFERRED:
            self.on_message_complete()

    def _has_event(self, event: int) -> bool:
        """Whether the socket has this event of ``select.poll``: POLLIN where bytes wait in it, or the end of them."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), event)
        return bool(poll.poll(0))


class _Reading(FlowControl):
    """uvicorn resumes to read whenever a task waits for its client; here not while ``is_blocked``."""

    is_blocked = False

    def resume_reading(self) -> None:
        if not self.is_blocked:
            super().resume_reading()
