"""The access log: a line for each request, or for each that failed or was slow, with the times of its stages."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from service.telemetry.logs import peer

log = logging.getLogger("heed")

MAX_PATH_LENGTH = 200  # characters


# Called with a request that was answered, and the status. Its scope has the state that the envelope sets.
Observer = Callable[[Scope, int], None]


def is_quiet(path: str) -> bool:
    """Whether this is a health probe or a scrape; these are frequent, and neither logged nor traced."""
    return path.startswith("/v2/health/") or path == "/metrics"


@dataclass(frozen=True)
class AccessLog:
    """Logs requests: ``all``, or those that failed or took longer than ``slow_milliseconds``."""

    all: bool
    slow_milliseconds: float

    def __call__(self, scope: Scope, status: int) -> None:
        milliseconds = scope["state"]["timing"].total_ns / 1e6
        if self.all or status >= 400 or milliseconds > self.slow_milliseconds:
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
