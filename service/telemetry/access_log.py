"""The access log: a line for each request, or for each that failed or was slow, with the times of its stages."""

import logging
import time
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.engine.counters import HUNG_UP

log = logging.getLogger("heed")

MAX_PATH_LENGTH = 200  # characters


def is_quiet(scope: Scope) -> bool:
    """Whether this is a health probe or a scrape; these are frequent, and neither logged nor traced."""
    path: str = scope.get("path", "")
    return scope["type"] != "http" or path.startswith("/v2/health/") or path == "/metrics"


class StatusRecorder:
    """An ASGI ``send`` that keeps the status of the response; HUNG_UP if none was sent."""

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
        self._slow_ms = slow_milliseconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_quiet(scope):
            await self._app(scope, receive, send)
            return
        recorder = StatusRecorder(send)
        start = time.perf_counter_ns()
        try:
            await self._app(scope, receive, recorder)
        finally:
            self._log(scope, recorder.status, start)

    def observe(self, scope: Scope, status: int) -> None:
        """Log a request that was answered on the fast path."""
        self._log(scope, status, scope["state"]["timing"].started_ns)

    def _log(self, scope: Scope, status: int, start_ns: int) -> None:
        milliseconds = (time.perf_counter_ns() - start_ns) / 1e6
        if self._all or status >= 400 or milliseconds > self._slow_ms:
            level = logging.ERROR if status >= 500 else logging.WARNING if status >= 400 else logging.INFO
            log.log(level, "request", extra=_event(scope, status, milliseconds))


def model_of(scope: Scope) -> str | None:
    """The model named in the path; None if there is none."""
    path: dict[str, str] = scope.get("path_params", {})
    return path.get("model") or path.get("block")


def _event(scope: Scope, status: int, milliseconds: float) -> dict[str, Any]:
    state = scope["state"]
    event = {
        "request_id": state["request_id"].decode(),
        "method": scope["method"],
        "path": scope["path"][:MAX_PATH_LENGTH],
        "status": status,
        "milliseconds": round(milliseconds, 3),
    }
    if model := model_of(scope):
        event["model"] = model[:MAX_PATH_LENGTH]
    if "trace_id" in state:
        event["trace_id"] = state["trace_id"]
    spent_ns = state["timing"].spent_ns
    return event | {stage: round(ns / 1e6, 3) for stage, ns in spent_ns.items() if any(spent_ns.values())}
