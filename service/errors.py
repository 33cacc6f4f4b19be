"""The errors a client can be answered with, and their status in each API (native / V2).

``service/http/response.py`` writes the responses.

HeedError
├── Malformed          400 / 400   not JSON, an unknown tensor or field
├── Invalid            422 / 400   well-formed but wrong: shape, rank, ragged rows, type, NaN
├── Unauthorized       401 / 401   an API key is needed: none was sent, or an unknown one
├── Forbidden          403 / 403   this key, or this web page, may not do this
├── NotFound           404 / 404   unknown block, model or version
├── Conflict           409 / 409   the memory has another length than the request expects
├── Gone               410 / 410   the files of a memory are damaged
├── TooLarge           413 / 400   the body exceeds its limit
│   ├── TooMuchMemory  413 / 400   the request would need more memory than its limit
│   └── TooLong        413 / 400   the run is forecast to take longer than its limit
├── UnsupportedMedia   415 / 415   unknown media type
│   └── UnsupportedEncoding  415 / 501   unknown Content-Encoding
├── Unsupported        501 / 501   a part of the protocol that Heed does not offer
├── NotReady           503 / 503   the model is not loaded yet or failed to load, or the server is shutting down
│   └── PartsMissing   503 / 503   parts of a memory are on nodes that are lost
├── NotAllowed         503 / 503   the settings do not let clients do this
├── OutOfMemory        507 / 503   a run found too little memory on its device. V2's clients retry a 503 only
├── NoRoom             507 / 503   the memories in use, or the disk, leave no room for a memory
├── NotEnoughMemory    503 / 503   this machine has too little memory left at the moment
├── DeviceLost         503 / 503   the GPU has failed: this process ends
├── Overloaded         503 / 503   the queue or the memory budget is full
│   └── TooManyRequests  429 / 429   the same, with overload_status=429
└── TimedOut           504 / 504   the deadline passed before the run began
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from service.shorten import shortened

MAX_DETAIL_BYTES = 760  # as JSON; with the rest of an error's body it is less than 1 KiB
MAX_FIELD_BYTES = 120


class HeedError(Exception):
    """An error to answer the client with. ``detail`` is its text; ``field`` names the tensor or parameter at fault."""

    status: ClassVar[int] = 500
    v2_status: ClassVar[int] = 500
    limit: ClassVar[str] = ""  # the label of heed_requests_rejected_total; the engine counts its own rejections
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, detail: str, field: str | None = None) -> None:
        self.field = None if field is None else shortened(field, MAX_FIELD_BYTES)
        super().__init__(shortened(detail if field is None else f"{self.field}: {detail}", MAX_DETAIL_BYTES))
        self.detail = str(self)


class Malformed(HeedError):
    status, v2_status = 400, 400


class Invalid(HeedError):
    status, v2_status = 422, 400


class Unauthorized(HeedError):
    status, v2_status = 401, 401
    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})


class Forbidden(HeedError):
    status, v2_status = 403, 403


class NotFound(HeedError):
    status, v2_status = 404, 404


class Conflict(HeedError):
    status, v2_status = 409, 409


class Gone(HeedError):
    status, v2_status = 410, 410


class TooLarge(HeedError):
    status, v2_status = 413, 400
    limit = "max_body_bytes"


class TooMuchMemory(TooLarge):
    limit = "max_memory_bytes"


class TooLong(TooLarge):
    limit = "max_run_seconds"


class UnsupportedMedia(HeedError):
    status, v2_status = 415, 415


class UnsupportedEncoding(UnsupportedMedia):
    status, v2_status = 415, 501
    headers = MappingProxyType({"Accept-Encoding": "gzip, deflate"})


class Unsupported(HeedError):
    status, v2_status = 501, 501


class NotReady(HeedError):
    status, v2_status = 503, 503
    limit = "not_ready"
    headers = MappingProxyType({"Retry-After": "1"})


class PartsMissing(NotReady):
    pass


class NotAllowed(HeedError):
    status, v2_status = 503, 503


class OutOfMemory(HeedError):
    status, v2_status = 507, 503
    limit = "device_memory"
    headers = MappingProxyType({"Retry-After": "1"})


class NoRoom(HeedError):
    status, v2_status = 507, 503
    limit = "memories_bytes"
    headers = MappingProxyType({"Retry-After": "1"})


class NotEnoughMemory(HeedError):
    status, v2_status = 503, 503
    limit = "memory"
    headers = MappingProxyType({"Retry-After": "1"})

    def __init__(self) -> None:
        super().__init__("not enough memory is left on this machine for this request; a smaller one, or later, may fit")


class DeviceLost(HeedError):
    status, v2_status = 503, 503
    limit = "device_lost"
    headers = MappingProxyType({"Retry-After": "1"})


class Overloaded(HeedError):
    """``retry_after`` is in seconds."""

    status, v2_status = 503, 503

    def __init__(self, detail: str, retry_after: int) -> None:
        super().__init__(detail)
        self.headers = {"Retry-After": str(retry_after)}


class TooManyRequests(Overloaded):
    status, v2_status = 429, 429


class TimedOut(HeedError):
    status, v2_status = 504, 504
    headers = MappingProxyType({"Retry-After": "1"})


def translated(error: BaseException) -> BaseException:
    """``error`` as the HeedError it means to a client; itself if it has no such meaning.

    A failed allocation is a ``MemoryError``, also from numpy and from C++ (pybind11 translates ``std::bad_alloc``).
    Requests are cancelled only when the server shuts down.
    """
    if isinstance(error, asyncio.CancelledError):
        return NotReady("Server is stopping: this request was not finished in time")
    return NotEnoughMemory() if isinstance(error, MemoryError) else error
