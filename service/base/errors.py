"""The errors a client can be answered with, and their status in each API.

``service/http/response.py`` writes the responses; ``docs/errors.md`` lists the classes for clients.
"""

import asyncio
import errno
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import ClassVar

from service.base.messages import shortened

MAX_DETAIL_BYTES = 760  # as JSON; with the rest of an error's body it is less than 1 KiB
MAX_FIELD_BYTES = 120
RETRY = {"Retry-After": "1"}
CLIENT_CLOSED_REQUEST = 499  # as in nginx: the client closed the connection before its body was complete
# The codes of errors that routers and connections raise, which have no class here.
HTTP_CODES = {
    400: "malformed",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    **dict.fromkeys((413, 414, 431), "too_large"),
    500: "internal_error",
    **dict.fromkeys((501, 505), "unsupported"),
    503: "overloaded",
}
_CLASSES: "list[type[HeedError]]" = []


class HeedError(Exception):
    """An error to answer the client with. ``detail`` is its text; ``field`` names the tensor or parameter at fault.

    A subclass states its status in the native API, and that in V2 where it is another; the documentation of both has
    its docstring. Its ``code`` in the native API is its name in snake case.
    """

    code: ClassVar[str] = HTTP_CODES[500]
    status: ClassVar[int] = 500
    v2_status: ClassVar[int] = 500
    limit: ClassVar[str] = ""  # the label of heed_requests_rejected_total; the engine counts its own rejections
    headers: Mapping[str, str] = {}

    def __init_subclass__(
        cls,
        status: int | None = None,
        v2_status: int | None = None,
        limit: str | None = None,
        headers: Mapping[str, str] | None = None,
        listed: bool = True,  # in the documentation
    ) -> None:
        super().__init_subclass__()
        if status is not None:
            cls.status, cls.v2_status = status, v2_status or status
        if limit is not None:
            cls.limit = limit
        if headers is not None:
            cls.headers = headers
        if listed:
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
            _CLASSES.append(cls)

    def __init__(self, detail: str, field: str | None = None) -> None:
        self.field = None if field is None else shortened(field, MAX_FIELD_BYTES)
        super().__init__(shortened(detail if field is None else f"{self.field}: {detail}", MAX_DETAIL_BYTES))
        self.detail = str(self)


class Malformed(HeedError, status=400):
    """Not JSON, an unknown tensor or field."""


class Invalid(HeedError, status=422, v2_status=400):
    """Well-formed but wrong: shape, rank, ragged rows, type, NaN."""


class Unauthorized(HeedError, status=401, headers={"WWW-Authenticate": "Bearer"}):
    """The API key is missing or unknown."""


class Forbidden(HeedError, status=403):
    """This key or web page lacks permission."""


class NotFound(HeedError, status=404):
    """Unknown block, model, version or memory."""


class Conflict(HeedError, status=409):
    """The memory does not have the length that the request expects."""


class Gone(HeedError, status=410):
    """The files of a memory are damaged."""


class TooLarge(HeedError, status=413, v2_status=400, limit="max_body_bytes"):
    """The body exceeds its limit."""


class TooMuchMemory(TooLarge, limit="max_memory_bytes"):
    """The request would need more memory than its limit."""


class TooLong(TooLarge, limit="max_run_seconds"):
    """The run is forecast to take longer than its limit."""


class UnsupportedMedia(HeedError, status=415):
    """Unknown media type."""


class UnsupportedEncoding(UnsupportedMedia, status=415, v2_status=501, headers={"Accept-Encoding": "gzip, deflate"}):
    """Unknown Content-Encoding."""


class Unsupported(HeedError, status=501):
    """A part of the protocol that Heed does not support."""


class NotReady(HeedError, status=503, limit="not_ready", headers=RETRY):
    """The model is not loaded yet or failed to load, or the server is shutting down."""


class PartsMissing(NotReady):
    """Parts of a memory are on lost nodes."""


class NotAllowed(HeedError, status=503):
    """The server's settings do not allow this."""


class OutOfMemory(HeedError, status=507, v2_status=503, limit="device_memory", headers=RETRY):
    """The device has too little memory left for this run."""  # V2's clients retry a 503 only


class NoRoom(HeedError, status=507, v2_status=503, limit="memories_bytes", headers=RETRY):
    """The memories in use, or the disk, leave no room for a memory."""


class NotEnoughMemory(HeedError, status=503, limit="memory", headers=RETRY):
    """This machine has too little memory left at the moment."""

    def __init__(self) -> None:
        super().__init__(
            "this machine has too little free memory for this request; send a smaller one, or try again later"
        )


class DeviceLost(HeedError, status=503, limit="device_lost", headers=RETRY):
    """The GPU has failed."""


class Overloaded(HeedError, status=503):
    """The queue or the memory budget is full."""

    def __init__(self, detail: str, retry_after: int) -> None:  # in seconds
        super().__init__(detail)
        self.headers = {"Retry-After": str(retry_after)}


class TimedOut(HeedError, status=504, headers=RETRY):
    """The deadline passed before the run began."""


def meaning(status: int, v2: bool = False) -> str:
    """What a response with this status means, in V2 or in the native API."""
    if status == 500:
        return "Internal error; see the server's log for the request id."
    return " ".join(cls.__doc__ or "" for cls in _CLASSES if status == (cls.v2_status if v2 else cls.status))


def codes() -> list[str]:
    """The codes of all errors of the native API."""
    return sorted(meanings())


def meanings() -> dict[str, str]:
    """What each code of the native API means."""
    others = {code: f"{HTTPStatus(status).phrase}." for status, code in HTTP_CODES.items()}
    return others | {"internal_error": meaning(500)} | {cls.code: cls.__doc__ or "" for cls in _CLASSES}


def translated(error: BaseException) -> BaseException:
    """``error`` as the HeedError it means to a client; itself if it has no such meaning.

    A failed allocation is a ``MemoryError``, also from numpy and from C++ (pybind11 translates ``std::bad_alloc``).
    Requests are cancelled only when the server shuts down.
    """
    if isinstance(error, asyncio.CancelledError):
        return NotReady("Server is stopping: this request was not finished in time")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return NotReady("this process has too many open files; try again later")
    return NotEnoughMemory() if isinstance(error, MemoryError) else error
