"""The log: one line an event on standard error, as text or as JSON objects, uvicorn's lines included."""

import copy
import io
import json
import logging
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from logging.config import dictConfig
from typing import Any, Literal, TextIO

from service.shorten import shortened

log = logging.getLogger("heed")

STANDARD = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "color_message"}
MAX_MESSAGE_BYTES = 1000  # of a warning or an error
MAX_INFO_BYTES = 16_000  # of other lines, such as the list of all models
UNQUOTED = re.compile(r"[\w./:+%@-]+")  # written without quotes


def configure(level: str, log_format: Literal["text", "json"]) -> None:
    """Log lines of ``level`` and above in ``log_format``, and the warnings of other libraries."""
    sys.stderr = _non_blocking(sys.stderr)
    dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"text": {"()": Text}, "json": {"()": Json}},
            "handlers": {"stderr": {"()": LossyHandler, "formatter": log_format}},
            "root": {"handlers": ["stderr"], "level": "WARNING"},
            "loggers": {name: {"level": level.upper()} for name in ("heed", "uvicorn")},
        }
    )


class Text(logging.Formatter):
    """``<time> <level> <message> <name>=<value> ...``, then a traceback if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-8s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        return super().format(_bounded(record))

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).splitlines()
        return "\n".join([shortened(line, MAX_MESSAGE_BYTES) for line in lines])

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        return " ".join([line, *(f"{name}={_quoted(value)}" for name, value in _fields(record).items())])


class Json(Text):
    """``time``, ``level`` and ``message``, the event's other fields, and ``exception`` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        record = _bounded(record)
        event: dict[str, Any] = {
            "time": f"{self.formatTime(record, self.datefmt)}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
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

    def warning(self, message: str, *values: object, **fields: object) -> None:
        """Log a line with ``fields``, unless one was logged in the last second."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        extra = {**fields, "left_out": self._left_out} if self._left_out else fields
        self._next, self._left_out = now + 1, 0
        log.warning(message, *values, extra=extra)


MALFORMED = RateLimited()  # for requests that are not HTTP


def peer(client: Sequence[object] | None) -> dict[str, object]:
    """The field with the address of a client, a host and a port; none where it is not known."""
    if not client:
        return {}
    host, port, *_ = client
    return {"peer": f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"}


class LossyFile(io.RawIOBase):
    """A file that never blocks: lines that the descriptor cannot take at once are dropped and counted.

    With a blocking pipe that nobody reads, the server would stop at the first line the pipe has no room for; a full
    disk would raise an error at each line. What ONNX Runtime writes to the same descriptor does not block either.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._rest = b""  # of a line that was written in part
        self.lost = 0  # lines
        self._socket: socket.socket | None = None
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(descriptor))
        elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            _reopen_non_blocking(descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        content = bytes(data)
        try:
            if self._rest:
                self._rest = self._rest[self._send(self._rest) :]
            if self._rest:
                self.lost += 1
            else:
                self._rest = content[self._send(content) :]
        except OSError:
            self.lost += 1
        return len(content)

    def _send(self, content: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(content, socket.MSG_DONTWAIT)
        return os.write(self._descriptor, content)


class LossyHandler(logging.StreamHandler[TextIO]):
    """Writes to standard error. The first line after dropped ones has their number as the field ``lost``."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        file = self.stream.buffer
        lost = file.lost if isinstance(file, LossyFile) else 0
        if lost:
            record = copy.copy(record)
            record.lost = lost
        super().emit(record)
        if lost and isinstance(file, LossyFile) and file.lost == lost:
            file.lost = 0


def _non_blocking(stream: TextIO) -> TextIO:
    """The stream, unbuffered and non-blocking."""
    if isinstance(stream.buffer, LossyFile):
        return stream
    raw = LossyFile(stream.fileno())
    return io.TextIOWrapper(raw, stream.encoding, "backslashreplace", write_through=True)  # type: ignore[type-var]


def _reopen_non_blocking(descriptor: int) -> None:
    """Replace the descriptor by a non-blocking one of the same pipe or terminal; its other users are unaffected."""
    try:
        reopened = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # no such file system, or another user's pipe
        return
    os.dup2(reopened, descriptor)
    os.close(reopened)


def _bounded(record: logging.LogRecord) -> logging.LogRecord:
    """The event with its message shortened: warnings and errors may quote what a client sent."""
    message = record.getMessage()
    short = shortened(message, MAX_INFO_BYTES if record.levelname in ("DEBUG", "INFO") else MAX_MESSAGE_BYTES)
    if short == message:
        return record
    bounded = copy.copy(record)
    bounded.msg, bounded.args = short, ()
    return bounded


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """The fields given as ``extra``."""
    return {name: value for name, value in record.__dict__.items() if name not in STANDARD}


def _quoted(value: object) -> str:
    text = str(value)
    return text if UNQUOTED.fullmatch(text) else json.dumps(text)
