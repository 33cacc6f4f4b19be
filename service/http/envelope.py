"""What all routes share: ``X-Request-ID``, ``Server-Timing``, the deadline, and that every error becomes a response.

It is raw ASGI, as the inference routes pay for it, too.
"""

import asyncio
import itertools
import logging
import re
import secrets
from collections.abc import Sequence

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.base.errors import CLIENT_CLOSED_REQUEST, HeedError, Malformed
from service.base.timing import Timing
from service.http.body import Headers
from service.http.response import error_response
from service.telemetry.access_log import Observer, is_quiet

log = logging.getLogger("heed")

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
DEADLINE_HEADERS = {  # Envoy, and so Istio, names the time that it will wait
    b"x-request-timeout": (10**9, "seconds"),
    b"x-envoy-expected-rq-timeout-ms": (10**6, "milliseconds"),
}
NUMBER = re.compile(rb"\d{1,9}(\.\d{1,9})?")


class RequestIds:
    """Names requests: by their ``X-Request-ID``, or by this process and a number."""

    def __init__(self) -> None:
        self._process = secrets.token_hex(8).encode()
        self._count = itertools.count(1)

    def name(self, headers: Headers) -> bytes:
        """The id of a request with these headers: its own where that is short and printable, else a new one."""
        own = headers.get(b"x-request-id")
        if own is not None and REQUEST_ID.fullmatch(own):
            return own
        return b"%b%08x" % (self._process, next(self._count))


def deadline(began_ns: int, headers: Headers, default_s: float, timeout_us: int = 0) -> int | None:
    """The deadline of a request that began at ``began_ns``, both of ``time.perf_counter_ns``; None: it has none.

    Of the headers and the request's parameter ``timeout_us`` the shortest counts. Without any of them the default
    counts, of which 0 is none.

    Raises:
        Malformed: a header that is no number.
    """
    if not timeout_us and headers.keys().isdisjoint(DEADLINE_HEADERS):
        return began_ns + int(default_s * 1e9) if default_s else None
    times_ns = [1000 * timeout_us] if timeout_us else []
    for name, (unit_ns, unit) in DEADLINE_HEADERS.items():
        value = headers.get(name)
        if value is not None:
            if not NUMBER.fullmatch(value):
                raise Malformed(
                    f"expected {name.decode()} to be a number of {unit}, got {value[:20].decode('latin-1')!r}"
                )
            times_ns.append(int(float(value) * unit_ns))
    return began_ns + min(times_ns)


def log_unexpected(error: BaseException, request_id: bytes) -> None:
    """Log an error whose text is not shown to clients."""
    name = request_id.decode()
    if isinstance(error, MemoryError):
        log.error("request %s: not enough memory", name, extra={"request_id": name})
    elif not isinstance(error, (HeedError, asyncio.CancelledError)):
        log.error("request %s failed", name, exc_info=error, extra={"request_id": name})


class Envelope:
    """ASGI middleware: names each request, times it, and turns errors into responses; those of bugs show no detail.

    Inside it ``scope["state"]`` holds the request's ``headers``, a dict of lower-case bytes, its ``timing``, and
    its ``request_id``. ``observers`` are called for each request that has ended, but for probes and scrapes.
    """

    def __init__(
        self, app: ASGIApp, ids: RequestIds, timing: type[Timing] = Timing, observers: Sequence[Observer] = ()
    ) -> None:
        self._app = app
        self._ids = ids
        self._timing = timing
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = self._ids.name(headers)
        state = scope.setdefault("state", {})
        timing = self._timing(state.get("arrived_ns"))
        state["headers"], state["timing"], state["request_id"] = headers, timing, request_id
        started = ended = False
        status = CLIENT_CLOSED_REQUEST

        async def send_enveloped(message: Message) -> None:
            nonlocal started, ended, status
            if message["type"] != "http.response.start":
                ended = not message.get("more_body", False)
            else:
                started, status = True, message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id),
                    (b"server-timing", timing.header()),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_enveloped)
        except ClientDisconnect:
            log.debug("request %s: the client disconnected", request_id.decode())
        except (Exception, asyncio.CancelledError) as error:
            log_unexpected(error, request_id)
            if started and not ended:
                raise
            if not started:
                await error_response(scope["path"], error)(scope, receive, send_enveloped)
        finally:
            for observer in () if is_quiet(scope["path"]) else self._observers:
                observer(scope, status)
