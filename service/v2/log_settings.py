"""The logging extension, over the service's own logger; and trace settings, which are: none."""

import logging
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from service.errors import Malformed, Unsupported
from service.v2 import wire
from service.v2.control import CONTROL_FAILURES, body, must_be_allowed
from service.v2.describe import Models

LEVELS = {"log_info": logging.INFO, "log_warning": logging.WARNING, "log_error": logging.ERROR}
NO_TRACE = {"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0", "trace_file": ""}

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])
log = logging.getLogger("heed")


class Change(BaseModel):
    """Settings to change; null and what is left out stay."""

    model_config = ConfigDict(extra="forbid", strict=True)

    log_file: str | None = None
    log_info: bool | None = None
    log_warning: bool | None = None
    log_error: bool | None = None
    log_verbose_level: int | None = None
    log_format: str | None = None


class TraceChange(BaseModel):
    model_config = ConfigDict(extra="allow")


@router.get("/logging", summary="What is logged")
async def log_settings() -> wire.LogSettings:
    return _now()


@router.post(
    "/logging",
    summary="Change what is logged",
    responses={status: said for status, said in CONTROL_FAILURES.items() if status != 404},
    openapi_extra={
        "requestBody": {
            "content": {"application/json": {"schema": Change.model_json_schema(), "example": {"log_verbose_level": 1}}}
        }
    },
)
async def change_log_settings(request: Request) -> wire.LogSettings:
    must_be_allowed(request, "changing log settings is not allowed")
    change = await body(request, Change)
    if change.log_file or change.log_format not in (None, "default"):
        raise Malformed("the log goes to standard error in its default format; neither can be changed while it runs")
    now = _now().model_copy(update=change.model_dump(exclude_none=True))
    if now.log_verbose_level < 0:
        raise Malformed("expected log_verbose_level to be 0 or more")
    levels = [level for name, level in LEVELS.items() if getattr(now, name)]
    log.setLevel(logging.DEBUG if now.log_verbose_level else min(levels, default=logging.CRITICAL))
    return _now()


@router.get("/trace/setting", include_in_schema=False)
async def trace_settings() -> dict[str, Any]:
    return NO_TRACE


@router.get("/models/{model}/trace/setting", include_in_schema=False)
async def model_trace_settings(model: str, repository: Models) -> dict[str, Any]:
    repository.model(model)
    return NO_TRACE


@router.post("/trace/setting", include_in_schema=False)
@router.post("/models/{model}/trace/setting", include_in_schema=False)
async def change_trace_settings(request: Request) -> dict[str, Any]:
    change = await body(request, TraceChange)
    for name, value in (change.model_extra or {}).items():
        if value is not None and (name == "trace_file" or value != NO_TRACE.get(name)):
            raise Unsupported("tracing is not offered here; every answer's Server-Timing says where its time went")
    return NO_TRACE


def _now() -> wire.LogSettings:
    level = log.getEffectiveLevel()
    return wire.LogSettings(
        log_file="",
        log_verbose_level=1 if level <= logging.DEBUG else 0,
        log_format="default",
        **{name: level <= least for name, least in LEVELS.items()},
    )
