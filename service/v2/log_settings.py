"""The logging extension: which levels the service's logger writes."""

import logging

from fastapi import APIRouter, Request
from pydantic import BaseModel

from service.base.errors import Malformed
from service.v2.openapi import errors, json_body
from service.v2.repository import read_body, require_control
from service.v2.schemas import LogSettings

LEVELS = {"log_info": logging.INFO, "log_warning": logging.WARNING, "log_error": logging.ERROR}  # lowest first

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])
log = logging.getLogger("heed")


class LogSettingsChange(BaseModel, extra="forbid", strict=True):
    """Settings to change; a missing one, or null, leaves the setting as it is."""

    log_file: str | None = None
    log_info: bool | None = None
    log_warning: bool | None = None
    log_error: bool | None = None
    log_verbose_level: int | None = None
    log_format: str | None = None


class LevelFilter(logging.Filter):
    """Drops the lines of levels that the settings switch off. Critical lines are always written."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self.settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        names = [name for name, level in LEVELS.items() if level <= record.levelno < logging.CRITICAL]
        return not names or getattr(self.settings, names[-1])


@router.get("/logging", summary="What is logged")
async def log_settings() -> LogSettings:
    return _current()


@router.post(
    "/logging",
    summary="Change what is logged",
    responses=errors(400, 403, 415, 503),
    openapi_extra=json_body(LogSettingsChange, {"log_verbose_level": 1}),
)
async def change_log_settings(request: Request) -> LogSettings:
    require_control(request, "changing log settings is not allowed")
    change = await read_body(request, LogSettingsChange)
    if change.log_file or change.log_format not in (None, "default"):
        raise Malformed("the log goes to standard error in its default format; neither can be changed while it runs")
    settings = _current().model_copy(update=change.model_dump(exclude_none=True))
    if settings.log_verbose_level < 0:
        raise Malformed("expected log_verbose_level to be 0 or more")
    levels = [level for name, level in LEVELS.items() if getattr(settings, name)]
    log.setLevel(logging.DEBUG if settings.log_verbose_level else min(levels, default=logging.CRITICAL))
    others = [filter for filter in log.filters if not isinstance(filter, LevelFilter)]
    log.filters = [*others, LevelFilter(settings)]
    return settings


def _current() -> LogSettings:
    """The settings that a client has made, else the equivalents of the logger's level."""
    for filter in log.filters:
        if isinstance(filter, LevelFilter):
            return filter.settings
    level = log.getEffectiveLevel()
    return LogSettings(
        log_file="",
        log_verbose_level=1 if level <= logging.DEBUG else 0,
        log_format="default",
        **{name: level <= lowest for name, lowest in LEVELS.items()},
    )
