"""What can go wrong, each with its status in both faces, and the one place where an error becomes an answer.

HeedError
├── Malformed          400 / 400   not JSON, an unknown tensor or field
├── Invalid            422 / 400   well-formed but wrong: shape, rank, ragged rows, type, NaN
├── Unauthorized       401 / 401   no API key, or an unknown one, where one is needed
├── Forbidden          403 / 403   a key that does not open this
├── NotFound           404 / 404   unknown block, model or version
├── TooLarge           413 / 400   the body over the limit
│   └── TooMuchMemory  413 / 400   what it would need in memory over the limit
├── UnsupportedMedia   415 / 415   unknown media type
│   └── UnsupportedEncoding  415 / 501   unknown Content-Encoding
├── Unsupported        501 / 501   a part of the protocol that is not offered here
├── NotReady           503 / 503   not loaded yet, failed to load, or the server is stopping
├── NotAllowed         503 / 503   the settings keep clients from this
├── OutOfMemory        507 / 503   a run found no memory, on the GPU mostly; 507 says that it is the request's size
│                                  beside others', and clients of V2 know 503 alone as one to try again
├── DeviceLost         503 / 503   the GPU answers no more: this process ends, or opens its models anew
├── Overloaded         503 / 503   as much is queued as may be
│   └── TooManyRequests  429 / 429   the same, by setting
└── TimedOut           504 / 504   past its deadline
"""

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import ClassVar

from starlette.exceptions import HTTPException
from starlette.responses import Response


class HeedError(Exception):
    """An answer that is not the one asked for. ``field`` names the tensor or parameter at fault."""

    status: ClassVar[int] = 500
    v2_status: ClassVar[int] = 500
    limit: ClassVar[str] = ""  # of its kind, the one it breaks; what the engine refuses is counted there
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(detail if field is None else f"{field}: {detail}")
        self.detail = str(self)
        self.field = field


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


class TooLarge(HeedError):
    status, v2_status = 413, 400
    limit = "max_body_bytes"


class TooMuchMemory(TooLarge):
    limit = "max_memory_bytes"


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


class NotAllowed(HeedError):
    status, v2_status = 503, 503


class OutOfMemory(HeedError):
    status, v2_status = 507, 503
    limit = "device_memory"
    headers = MappingProxyType({"Retry-After": "1"})


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


def answer(path: str, error: BaseException) -> Response:
    """``error`` in the words of the face that was asked: RFC 9457 problem+json, or V2's ``{"error": ...}``.

    The text of an exception that is not ours is never shown. A request is cancelled where its server has to end.
    """
    v2 = path.startswith("/v2")
    if isinstance(error, asyncio.CancelledError):
        error = NotReady("Server is stopping: this request was not finished in time")
    if isinstance(error, HeedError):
        status, detail, headers = error.v2_status if v2 else error.status, error.detail, error.headers
    elif isinstance(error, HTTPException):
        status, detail, headers = error.status_code, error.detail, dict(error.headers or {})
    else:
        status, detail, headers = 500, "The server failed; its log names this request's X-Request-ID.", {}
    if v2:
        return Response(json.dumps({"error": detail}), status, headers, "application/json")
    problem = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    if isinstance(error, HeedError) and error.field is not None:
        problem["field"] = error.field
    return Response(json.dumps(problem), status, headers, "application/problem+json")
