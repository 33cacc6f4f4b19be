"""The log, one line an event on standard error: as text, or each line a JSON object. uvicorn's lines are alike."""

import io
import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from logging.config import dictConfig
from typing import Any, Literal, TextIO

STANDARD = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "color_message"}
PLAIN = re.compile(r"[\w./:+%@-]+")  # written without quotes


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Log in ``form`` from ``level`` on; other libraries' warnings, too."""
    sys.stderr = _unbuffered(sys.stderr)
    dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"text": {"()": Text}, "json": {"()": Json}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": form}},
            "root": {"handlers": ["stderr"], "level": "WARNING"},
            "loggers": {name: {"level": level.upper()} for name in ("heed", "uvicorn")},
        }
    )


class Text(logging.Formatter):
    """``<time> <level> <message> <name>=<value> ...``, then a traceback if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-8s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        return " ".join([line, *(f"{name}={_quoted(value)}" for name, value in _fields(record).items())])


class Json(Text):
    """``time``, ``level`` and ``message``, what else is known of the event, and ``exception`` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": f"{self.formatTime(record, self.datefmt)}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def _unbuffered(stream: TextIO) -> TextIO:
    """The stream, keeping nothing: what there is no room for is lost, where a buffer would fail again at each flush."""
    raw = io.FileIO(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(raw, stream.encoding, "backslashreplace", write_through=True)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """What was given as ``extra``."""
    return {name: value for name, value in record.__dict__.items() if name not in STANDARD}


def _quoted(value: object) -> str:
    said = str(value)
    return said if PLAIN.fullmatch(said) else json.dumps(said)
