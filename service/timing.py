"""What every answer carries: ``X-Request-ID``, and ``Server-Timing`` with the stages a request went through."""

import logging
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import errors

log = logging.getLogger("heed")

STAGES = ("decode", "queue", "compute", "encode")
SANE_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Timing:
    """Nanoseconds spent in each stage of one request, and when it began."""

    def __init__(self) -> None:
        self.began = time.perf_counter_ns()
        self.spent = dict.fromkeys(STAGES, 0)

    @staticmethod
    def of(scope: Scope) -> "Timing":
        timing: Timing = scope["state"]["timing"]
        return timing

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self.spent[stage] += time.perf_counter_ns() - start

    @property
    def total(self) -> int:
        """Nanoseconds since it began."""
        return time.perf_counter_ns() - self.began

    def __str__(self) -> str:
        return ", ".join(f"{stage};dur={spent / 1e6:.3f}" for stage, spent in self.spent.items())


class Envelope:
    """ASGI middleware: names each request, times it, and turns what nobody expected into a 500 that shows nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope).get("x-request-id", "")
        request_id = asked if SANE_ID.fullmatch(asked) else uuid.uuid4().hex
        timing = Timing()
        scope.setdefault("state", {})["timing"] = timing
        started = False

        async def send_enveloped(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers["Server-Timing"] = str(timing)
            await send(message)

        try:
            await self._app(scope, receive, send_enveloped)
        except ClientDisconnect:
            log.debug("request %s: the client hung up", request_id)
        except Exception as error:
            log.exception("request %s failed", request_id)
            if started:
                raise
            await errors.answer(Request(scope), error)(scope, receive, send_enveloped)
