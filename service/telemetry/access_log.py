"""The access log: a line for each request, or for each that failed or was slow, with the times of its stages."""

import logging
from abc import ABC, abstractmethod
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.base.errors import CLIENT_CLOSED_REQUEST
from service.telemetry.logs import peer

log = logging.getLogger("heed")

MAX_PATH_LENGTH = 200  # characters


def is_quiet(scope: Scope) -> bool:
    """Whether this is a health probe or a scrape; these are frequent, and neither logged nor traced."""
    path: str = scope.get("path", "")
    return scope["type"] != "http" or path.startswith("/v2/health/") or path == "/metrics"


class Observer(ABC):
    """ASGI middleware around the envelope: observes each request that has ended, but for probes and scrapes.

    The fast path, which has no ASGI messages, calls ``observe`` itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_quiet(scope):
            await self._app(scope, receive, send)
            return
        status = CLIENT_CLOSED_REQUEST

        async def send_observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_observed)
        finally:
            self.observe(scope, status)

    @abstractmethod
    def observe(self, scope: Scope, status: int) -> None:
        """A request was answered with ``status``; its ``scope`` has the state that the envelope sets."""


class AccessLog(Observer):
    """Logs requests."""

    def __init__(self, app: ASGIApp, logs_all: bool, slow_milliseconds: float) -> None:
        super().__init__(app)
        self._all = logs_all
        self._slow_ms = slow_milliseconds

    def observe(self, scope: Scope, status: int) -> None:
        milliseconds = scope["state"]["timing"].total_ns / 1e6
        if self._all or status >= 400 or milliseconds > self._slow_ms:
            level = logging.ERROR if status >= 500 else logging.WARNING if status >= 400 else logging.INFO
            log.log(level, "request", extra=_event(scope, status, milliseconds))


def model_of(scope: Scope) -> str | None:
    """The model named in the path; None if there is none."""
    path: dict[str, str] = scope.get("path_params", {})
    return path.get("model") or path.get("block")


def _event(scope: Scope, status: int, milliseconds: float) -> dict[str, Any]:
    state = scope["state"]
    event: dict[str, Any] = {
        "request_id": state["request_id"].decode(),
        **peer(scope.get("client")),
        "method": scope["method"],
        "path": scope["path"][:MAX_PATH_LENGTH],
        "status": status,
        "milliseconds": round(milliseconds, 3),
    }
    if model := model_of(scope):
        event["model"] = model[:MAX_PATH_LENGTH]
    if "trace_id" in state:
        event["trace_id"] = f"{state['trace_id']:032x}"
    spent_ns = state["timing"].spent_ns
    return event | {stage: round(ns / 1e6, 3) for stage, ns in spent_ns.items() if any(spent_ns.values())}
