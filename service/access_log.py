"""The access log: a line for each request, or for each that failed or was slow, with the time of its stages."""

import logging
import time
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.counts import HUNG_UP

log = logging.getLogger("heed")

MOST_OF_PATH = 200  # characters


def is_quiet(scope: Scope) -> bool:
    """What probes and scrapers ask for every few seconds is neither logged nor traced."""
    path: str = scope.get("path", "")
    return scope["type"] != "http" or path.startswith("/v2/health/") or path == "/metrics"


class Watched:
    """``send`` that remembers the status of the answer; it stays HUNG_UP where none was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = HUNG_UP

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


class AccessLog:
    """ASGI middleware around the envelope, whose ``scope["state"]`` it reads."""

    def __init__(self, app: ASGIApp, which: Literal["errors", "all"], slow_milliseconds: float) -> None:
        self._app = app
        self._all = which == "all"
        self._slow = slow_milliseconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_quiet(scope):
            await self._app(scope, receive, send)
            return
        watched = Watched(send)
        start = time.perf_counter_ns()
        try:
            await self._app(scope, receive, watched)
        finally:
            status = watched.status
            milliseconds = (time.perf_counter_ns() - start) / 1e6
            if self._all or status >= 400 or milliseconds > self._slow:
                log.log(_level(status), "request", extra=_event(scope, status, milliseconds))


def model_of(scope: Scope) -> str | None:
    """The model that the path names, if it names one."""
    path: dict[str, str] = scope.get("path_params", {})
    return path.get("model") or path.get("block")


def _level(status: int) -> int:
    return logging.ERROR if status >= 500 else logging.WARNING if status >= 400 else logging.INFO


def _event(scope: Scope, status: int, milliseconds: float) -> dict[str, Any]:
    state = scope["state"]
    event = {
        "request_id": state["request_id"].decode(),
        "method": scope["method"],
        "path": scope["path"][:MOST_OF_PATH],
        "status": status,
        "milliseconds": round(milliseconds, 3),
    }
    if model := model_of(scope):
        event["model"] = model[:MOST_OF_PATH]
    if "trace_id" in state:
        event["trace_id"] = state["trace_id"]
    spent = state["timing"].spent
    return event | {stage: round(ns / 1e6, 3) for stage, ns in spent.items() if any(spent.values())}
