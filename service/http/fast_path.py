"""The fast path: short inference requests are answered where the parser has read them, without an ASGI task.

For requests that take some ten microseconds, a task and its messages cost more than the work. So the task of a request
to an inference route is deferred until its body has come. If all of the work is then known to be short, the answer, or
the error, is written at once. In every other case the request's task is started, and the parser gets what has come of
the body: nothing has been run for it.

A client sends the same head with each of its requests, and to parse it costs a third of a small request. So heads are
known by their bytes: a whole request with a known head is not given to the parser. It passes all checks of other
requests.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from service.base.budget import Reservation
from service.base.cache import BoundedCache
from service.base.errors import HeedError
from service.base.timing import Timing
from service.http.auth import ApiKeyAuth
from service.http.body import Body, BodyBuffer, Headers
from service.http.connection import END_OF_HEAD, RequestState
from service.http.direct import RequestContext
from service.http.envelope import RequestIds, log_unexpected
from service.http.limits import LimitedProtocol
from service.http.response import JOIN_LIMIT_BYTES, Fields, Piece, error_response, flat, join, length_of
from service.http.routing import DirectRoute, DirectRoutes
from service.telemetry.access_log import Observer

MAX_BODY_BYTES = 1 << 20
MAX_HEADS = 256  # known ones
MAX_HEAD_BYTES = 2048  # of a known one
BODY_TIMEOUT_S = 1.0  # for a body to come before the request's task is started


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request whose task may be deferred."""

    route: DirectRoute
    url: bytes
    fields: list[tuple[bytes, bytes]]
    headers: Headers
    length: int  # of the body, in bytes
    json_length: int  # of its first part


@dataclass(frozen=True, slots=True)
class FastPath:
    """What the fast path needs of the application.

    ``task_headers``: a request with one of these headers always gets a task, as does a compressed one.
    ``response_fields`` are added to each response, and ``observers`` called for each.
    """

    routes: DirectRoutes
    auth: ApiKeyAuth | None
    request_ids: RequestIds
    timing: type[Timing] = Timing
    task_headers: frozenset[bytes] = frozenset({b"content-encoding"})
    response_fields: Sequence[tuple[bytes, bytes]] = ()
    observers: Sequence[Observer] = ()
    heads: BoundedCache[Head] = field(default_factory=lambda: BoundedCache(MAX_HEADS))  # known ones, by their bytes

    def remember(self, raw: bytes, head: Head) -> None:
        """Know the head with these bytes from now on."""
        if raw.startswith(b"POST ") and len(raw) <= MAX_HEAD_BYTES:
            self.heads.put(raw, head)


@dataclass(slots=True)
class DeferredRequest:
    """A request to an inference route whose task is deferred until its body has come."""

    head: Head
    context: RequestContext
    body: BodyBuffer  # as far as it has come
    unparsed_head: bytes = b""  # a known head, which the parser has not been given
    timer: asyncio.TimerHandle | None = None


class FastProtocol(LimitedProtocol):
    """The protocol of one connection, with the fast path."""

    def __init__(self, *args: Any, fast_path: FastPath, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fast_path = fast_path
        self._max_body_bytes = min(MAX_BODY_BYTES, kwargs["settings"].max_body_bytes)
        self._request: DeferredRequest | None = None
        self._unread_answer: Reservation | None = None  # of a large one, until the client has taken it
        self._kept_bytes: int | None = None  # of the body whose head the parser is given now, to start its task
        self._response_lines = b"".join([b"%b: %b\r\n" % field for field in fast_path.response_fields])
        self._default_fields: list[tuple[bytes, bytes]] = []
        self._default_lines: bytes | None = b""  # None: every answer has to close its connection

    def data_received(self, data: bytes) -> None:
        if self._is_between_requests and len(data) <= self._buffered and self._answer_known(data):
            return
        super().data_received(data)

    def _parse(self) -> None:
        super()._parse()
        if self._request is not None:
            self._set_timer(self._request)

    def shutdown(self) -> None:
        if self._request is not None:
            self._start_deferred()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._take_request()
        self._release_answer()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.flow.write_paused:
            self._release_answer()

    def _refuse(self, status: int, detail: str, limit: str = "") -> None:
        if self._request is not None:
            self._start_deferred()
        super()._refuse(status, detail, limit)

    def _defer(self) -> bool:
        if self._kept_bytes is not None and self._body_left is not None:
            self._body_left -= self._kept_bytes
            return False
        length, parser, fast_path = self._body_left, self.parser, self._fast_path
        if length is None or length > self._max_body_bytes or self.expect_100_continue or self.flow.write_paused:
            return False
        arrived = len(self._unparsed) - self._position
        if arrived > length:  # another request follows
            return False
        if parser.get_http_version() != "1.1" or parser.get_method() != b"POST" or not parser.should_keep_alive():
            return False
        route = fast_path.routes.find_url(self.url)
        headers = dict(self.headers)
        if route is None or not fast_path.task_headers.isdisjoint(headers):
            return False
        try:
            declared = route.endpoint.json_length(headers)
            if arrived < length:
                route.endpoint.model(route.path_params)
        except HeedError:  # it is answered before its body comes
            return False
        json_length = length if declared is None else declared
        if json_length > length:
            return False
        head = Head(route, self.url, self.headers, headers, length, json_length)
        start = self._position - self._head_bytes
        if start >= 0:  # the head has come in one piece
            fast_path.remember(self._unparsed[start : self._position], head)
        context = self._admit(head)
        if context is None:
            return False
        try:
            self._request = DeferredRequest(head, context, BodyBuffer(length, json_length))
        except MemoryError:
            context.reservation.release()
            raise
        return True

    def _add_to_deferred(self, piece: memoryview) -> None:
        request = self._request
        assert request is not None, "it is deferred"
        request.body.add(piece)
        if request.head.route.endpoint.engine.budget.has_room(len(piece)):
            request.context.reservation.add(len(piece))
        else:
            self._start_deferred()  # it is refused there

    def _admit(self, head: Head, arrived: int = 0) -> RequestContext | None:
        """The context of a request with this head, if it may be answered without a task.

        Reserved are the ``arrived`` bytes of its body: those that only its head declares take no memory yet.
        """
        fast_path, route, length = self._fast_path, head.route, head.length
        if route.skips(length):
            return None
        if fast_path.auth is not None and fast_path.auth.denied(head.headers, route.path, "POST"):
            return None
        engine = route.endpoint.engine
        if not engine.is_idle or not engine.budget.has_room(arrived):
            return None
        reservation = Reservation(engine.budget)
        reservation.add(arrived)
        return RequestContext(head.headers, fast_path.timing(self._arrived_ns), reservation)

    def _answer_known(self, data: bytes) -> bool:
        """Answer a request with a known head, or wait for the rest of its body; False if it is to be parsed."""
        end = data.find(END_OF_HEAD, 0, MAX_HEAD_BYTES) + 4
        head = self._fast_path.heads.get(data[:end])
        if head is None or len(data) - end > head.length or self.flow.write_paused or self._is_ending:
            return False
        self._arrived_ns = self._clock.arrival_ns(self.loop, self.transport)
        context = self._admit(head, len(data) - end)
        if context is None:
            return False
        self.url = head.url
        if len(data) - end < head.length:
            return self._defer_known(head, context, data, end)
        middle = end + head.json_length
        self._awaited_since = math.inf
        try:
            is_answered = self._answer(head, (data[end:middle], data[middle:]), context)
        except MemoryError:
            self._refuse_for_memory()
            return True
        finally:
            context.reservation.release()
        if is_answered:
            self._wait_for_request()
            if self._head_bytes:  # of line breaks before the request
                self._head_bytes = 0
                self._reserve_received()
        return is_answered

    def _defer_known(self, head: Head, context: RequestContext, data: bytes, end: int) -> bool:
        """Begin a request with a known head that ends at ``end``, and with a part of its body; False as above."""
        try:
            head.route.endpoint.model(head.route.path_params)
            body = BodyBuffer(head.length, head.json_length)
        except (HeedError, MemoryError):  # it is answered before its body comes
            context.reservation.release()
            return False
        body.add(memoryview(data)[end:])
        self.on_message_begin()
        self.url, self.headers = head.url, head.fields
        self._state, self._body_left = RequestState.DEFERRED, head.length - (len(data) - end)
        self._idle_since = math.inf
        self._request = DeferredRequest(head, context, body, data[:end])
        self._set_timer(self._request)
        return True

    def _set_timer(self, request: DeferredRequest) -> None:
        if request.timer is None:
            request.timer = self.loop.call_later(BODY_TIMEOUT_S, self._start_late)

    def _start_late(self) -> None:
        try:
            self._start_deferred()
        except MemoryError:
            self._refuse_for_memory()

    def _take_request(self) -> DeferredRequest | None:
        """Detach and return the deferred request."""
        request, self._request = self._request, None
        if request is not None:
            request.context.reservation.release()
            if request.timer is not None:
                request.timer.cancel()
        return request

    def _start_deferred(self) -> None:
        """Start the task of the deferred request, and give the parser what it has not seen of it."""
        request = self._take_request()
        assert request is not None, "the caller has looked"
        content, awaited_since = request.body.so_far(), self._awaited_since
        if request.unparsed_head:
            self._state, self._kept_bytes = RequestState.IDLE, len(content)
            try:
                self._feed(memoryview(request.unparsed_head))  # starts the task
            finally:
                self._kept_bytes, self._awaited_since = None, awaited_since
        else:
            self._start_task()
            self._state = RequestState.BODY
        if content:
            self._feed(content)
        elif not request.head.length:  # the parser reported the end before the task was started
            self.on_message_complete()

    def _answer_deferred(self) -> None:
        request = self._request
        assert request is not None, "it is deferred"
        is_answered = True
        try:
            if request.timer is not None:
                request.context.timing.start()
            is_idle = request.head.route.endpoint.engine.is_idle and not self.has_unparsed
            is_answered = is_idle and self._answer(request.head, request.body.parts(), request.context)
        finally:
            if is_answered:
                self._end_deferred(request)
        if not is_answered:
            self._start_deferred()

    def _end_deferred(self, request: DeferredRequest) -> None:
        """The deferred request is answered, or failed for lack of memory: the next one may begin."""
        self._end_request()
        self._take_request()
        if request.head.length and not request.unparsed_head:
            self.parser = self._new_parser()  # the old one waits for the body

    def _answer(self, head: Head, body: tuple[bytes, Body], context: RequestContext) -> bool:
        """Answer a request, if that takes a short time; False if it was not run."""
        route, default_lines = head.route, self._update_default_lines()
        if default_lines is None:
            return False
        fields: Fields
        try:
            answer = route.endpoint.answer_inline(route.path_params, body, context)
            if answer is None:
                route.skip(head.length)
                return False
            status, pieces, length = b"200 OK", answer[0], length_of(answer[0])
            fields = [*answer[1], (b"content-length", b"%d" % length)]
            request_id = self._fast_path.request_ids.name(head.headers)
        except Exception as error:
            request_id = self._fast_path.request_ids.name(head.headers)
            log_unexpected(error, request_id)
            response = error_response(route.path, error)
            status = b"%d %b" % (response.status_code, HTTPStatus(response.status_code).phrase.encode())
            pieces, length, fields = [bytes(response.body)], len(response.body), response.raw_headers
        lines = b"HTTP/1.1 %b\r\n%b%bx-request-id: %b\r\nserver-timing: %b\r\n%b\r\n" % (
            status,
            default_lines,
            b"".join([b"%b: %b\r\n" % field for field in fields]),
            request_id,
            context.timing.header(),
            self._response_lines,
        )
        self.server_state.total_requests += 1
        self._write([lines, *pieces], length, context)
        if self._fast_path.observers:
            self._observe(head, context.timing, int(status[:3]), request_id)
        return True

    def _write(self, pieces: Sequence[Piece], length: int, context: RequestContext) -> None:
        if length <= JOIN_LIMIT_BYTES:
            self.transport.write(join(pieces))
            return
        try:
            for piece in pieces:
                self.transport.write(flat(piece))
        except MemoryError:  # too late for another answer
            self.transport.abort()
        if self.flow.write_paused:
            self._unread_answer = context.reservation
            context.reservation = Reservation(self._unread_answer.budget)

    def _release_answer(self) -> None:
        if self._unread_answer is not None:
            self._unread_answer.release()
            self._unread_answer = None

    def _observe(self, head: Head, timing: Timing, status: int, request_id: bytes) -> None:
        state = {"headers": head.headers, "timing": timing, "request_id": request_id}
        scope = {
            "type": "http",
            "method": "POST",
            "path": head.route.path,
            "path_params": head.route.path_params,
            "headers": head.fields,
            "client": self.client,
            "state": state,
        }
        for observer in self._fast_path.observers:
            observer(scope, status)

    def _update_default_lines(self) -> bytes | None:
        """The header lines that uvicorn has every answer carry; it makes a new list each second."""
        fields = self.server_state.default_headers
        if fields is not self._default_fields:
            self._default_fields = fields
            closes = any(name.lower() == b"connection" for name, _ in fields)
            self._default_lines = None if closes else b"".join([b"%b: %b\r\n" % field for field in fields])
        return self._default_lines
