"""What every answer carries: ``X-Request-ID``, and ``Server-Timing``; and what becomes of an error.

It stands around all routes, those that carry tensors too, and is therefore raw ASGI.
"""

import asyncio
import logging

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import errors
from service.errors import HeedError
from service.request_id import RequestIds
from service.timing import Timing

log = logging.getLogger("heed")


class Envelope:
    """ASGI middleware: names each request, times it, and turns errors into answers; unexpected ones show nothing.

    Inside it ``scope["state"]`` holds the request's ``headers``, a dict of lower-case bytes, its ``timing``, and
    its ``request_id``.
    """

    def __init__(self, app: ASGIApp, ids: RequestIds, timing: type[Timing] = Timing) -> None:
        self._app = app
        self._ids = ids
        self._timing = timing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = self._ids.name(headers)
        timing = self._timing()
        state = scope.setdefault("state", {})
        state["headers"], state["timing"], state["request_id"] = headers, timing, request_id
        started = ended = False

        async def send_enveloped(message: Message) -> None:
            nonlocal started, ended
            if message["type"] != "http.response.start":
                ended = not message.get("more_body", False)
            else:
                started = True
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id),
                    (b"server-timing", timing.header()),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_enveloped)
        except ClientDisconnect:
            log.debug("request %s: the client hung up", request_id.decode())
        except (Exception, asyncio.CancelledError) as error:
            if not isinstance(error, (HeedError, asyncio.CancelledError)):
                log.exception("request %s failed", request_id.decode(), extra={"request_id": request_id.decode()})
            if started and not ended:
                raise
            if not started:
                await errors.answer(scope["path"], error)(scope, receive, send_enveloped)
