"""The log: one line an event on standard error, as text or as JSON objects, uvicorn's lines included."""

import copy
import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from logging.config import dictConfig
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, Literal

from service.base.messages import shortened

log = logging.getLogger("heed")

STANDARD = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "color_message"}
MAX_MESSAGE_BYTES = 1000  # of a warning or an error
MAX_INFO_BYTES = 16_000  # of other lines, such as the list of all models
MAX_QUEUED = 1000  # lines that wait to be written
FLUSH_S = 1.0  # for queued lines at the end of the process
STDERR = 2  # its file descriptor
UNQUOTED = re.compile(r"[\w./:+%@-]+")  # written without quotes


def configure(level: str, log_format: Literal["text", "json"]) -> None:
    """Log lines of ``level`` and above in ``log_format``, and the warnings of other libraries."""
    dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"text": {"()": Text}, "json": {"()": Json}},
            "handlers": {"stderr": {"()": LineQueue, "formatter": log_format}},
            "root": {"handlers": ["stderr"], "level": "WARNING"},
            "loggers": {name: {"level": level.upper()} for name in ("heed", "uvicorn")},
        }
    )


class Text(logging.Formatter):
    """``<time> <level> <message> <name>=<value> ...``, then a traceback if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-8s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).splitlines()
        return "\n".join([shortened(line, MAX_MESSAGE_BYTES) for line in lines])

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _message(record)
        line = super().formatMessage(record)
        return " ".join([line, *(f"{name}={_quoted(value)}" for name, value in _fields(record).items())])


class Json(Text):
    """``time``, ``level`` and ``message``, the event's other fields, and ``exception`` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": f"{self.formatTime(record, self.datefmt)}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "message": _message(record),
            **_fields(record),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


class RateLimited:
    """Logs at most one line a second, with the number of lines left out before. For events that clients cause."""

    def __init__(self) -> None:
        self._next = 0.0
        self._left_out = 0

    def log(self, level: int, message: str, *values: object, **fields: object) -> None:
        """Log a line with ``fields``, unless one was logged in the last second."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        extra = {**fields, "left_out": self._left_out} if self._left_out else fields
        self._next, self._left_out = now + 1, 0
        log.log(level, message, *values, extra=extra)


MALFORMED = RateLimited()  # for requests that are not HTTP
UNRUNNABLE = RateLimited()  # for requests that a foreign graph cannot run


def peer(client: Sequence[object] | None) -> dict[str, object]:
    """The field with the address of a client, a host and a port; none where it is not known."""
    if not client:
        return {}
    host, port, *_ = client
    return {"peer": f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"}


class Stderr(logging.Handler):
    """Writes each line to standard error at once, and counts those that it cannot take, as on a full disk."""

    handled = lost = 0  # lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(STDERR, f"{record.msg}\n".encode(errors="backslashreplace"))
        except OSError:
            self.lost += 1
        self.handled += 1


class LineQueue(QueueHandler):
    """Queues lines for a thread that writes them, as a write can block. Drops and counts lines while the queue is full.

    The first line after dropped ones has their number as the field ``lost``. Of the standard library's queues this is
    the one that a destructor can put a line into while another line is put.
    """

    queue: SimpleQueue[logging.LogRecord]

    def __init__(self) -> None:
        super().__init__(SimpleQueue())
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        """Start the thread with an empty queue: a forked process has no thread, and its parent writes the old lines."""
        self.queue, self._stderr, self._queued = SimpleQueue(), Stderr(), 0
        QueueListener(self.queue, self._stderr).start()

    def emit(self, record: logging.LogRecord) -> None:
        if self.queue.qsize() >= MAX_QUEUED:
            self._stderr.lost += 1
            return
        if self._stderr.lost:
            record = copy.copy(record)
            record.lost, self._stderr.lost = self._stderr.lost, 0
        self._queued += 1
        super().emit(record)

    def flush(self) -> None:
        """Wait until the queued lines are written, for at most ``FLUSH_S``."""
        end = time.monotonic() + FLUSH_S
        while self._stderr.handled < self._queued and time.monotonic() < end:
            time.sleep(0.001)


def _message(record: logging.LogRecord) -> str:
    """The message, shortened: warnings and errors may quote what a client sent."""
    limit = MAX_INFO_BYTES if record.levelname in ("DEBUG", "INFO") else MAX_MESSAGE_BYTES
    return shortened(record.getMessage(), limit)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """The fields given as ``extra``."""
    return {name: value for name, value in record.__dict__.items() if name not in STANDARD}


def _quoted(value: object) -> str:
    text = str(value)
    return text if UNQUOTED.fullmatch(text) else json.dumps(text)
