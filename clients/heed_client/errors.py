"""The errors of a call.

HeedError
├── Unreachable               no response: the connection was refused or broke
│   └── TimedOut              no response within the timeout
└── Problem                   the server responded with an error
    ├── BadRequest            4xx: the request is wrong; ``field`` names the tensor or parameter, if one is at fault
    │   ├── Unauthorized      401, 403: the API key is missing or wrong
    │   ├── NotFound          404: unknown block or memory
    │   └── Conflict          409: a memory does not have the number of keys that the request gives
    └── ServerError           5xx, or a response that is not Heed's
        ├── Unavailable       429, 503: loading, queue full or stopping; retried if the server sends Retry-After
        └── DeadlineExceeded  504: the request's deadline has passed
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx


class HeedError(Exception):
    """The call failed."""


class Unreachable(HeedError):
    """The server did not respond; ``__cause__`` is httpx's error."""


class TimedOut(Unreachable):
    """The server did not respond within the timeout."""


class Problem(HeedError):
    """The server responded with an error: the members of RFC 9457, and the request's id in the server's log.

    ``code`` is the kind of error, for programs: one of those in the documentation of errors, such as "invalid" or
    "overloaded"; if the server does not send it, that of the status. ``retry_after`` is in seconds, None if the server
    does not send it.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        field: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        code: str = "",
    ) -> None:
        super().__init__(f"{status} {title}: {detail}")
        self.status = status
        self.title = title
        self.detail = detail
        self.field = field
        self.request_id = request_id
        self.retry_after = retry_after
        self.code = code or _code_of(status)


class BadRequest(Problem):
    pass


class Unauthorized(BadRequest):
    pass


class NotFound(BadRequest):
    pass


class Conflict(BadRequest):
    pass


class ServerError(Problem):
    pass


class Unavailable(ServerError):
    pass


class DeadlineExceeded(ServerError):
    pass


BY_STATUS = {
    401: Unauthorized, 403: Unauthorized, 404: NotFound, 409: Conflict,
    429: Unavailable, 503: Unavailable, 504: DeadlineExceeded,
}  # fmt: skip


CODES = {
    401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 408: "request_timeout",
    409: "conflict", 410: "gone", 413: "too_large", 414: "too_large", 415: "unsupported_media", 422: "invalid",
    429: "overloaded", 431: "too_large", 501: "unsupported", 503: "overloaded", 504: "timed_out", 505: "unsupported",
    507: "no_room",
}  # fmt: skip


def _code_of(status: int) -> str:
    """The code of an answer that has only a status."""
    return CODES.get(status, "malformed" if 400 <= status < 500 else "internal_error")


def problem(response: httpx.Response, document: Any = None) -> Problem:
    """The error in a response of Heed's native API, its V2 API, or a proxy in front of it.

    ``document`` is the JSON of an error in a stream that began with a status of success.
    """
    status = response.status_code
    if document is None:
        with suppress(ValueError):
            document = response.json()
    members: dict[str, Any] = document if isinstance(document, dict) else {}
    if response.is_success:
        status = int(members.get("status") or 500)
    return BY_STATUS.get(status, ServerError if status >= 500 else BadRequest)(
        status,
        str(members.get("title") or response.reason_phrase),
        str(members.get("detail") or members.get("error") or ("" if response.is_success else _not_heeds(response))),
        members.get("field"),
        response.headers.get("X-Request-ID"),
        _seconds(response.headers.get("Retry-After")),
        str(members.get("code") or response.headers.get("X-Error-Code") or ""),
    )


def _not_heeds(response: httpx.Response) -> str:
    """The message for a response that is not Heed's."""
    address = f"{response.request.url.scheme}://{response.request.url.netloc.decode()}"
    text = " ".join(response.text.split())[:120]
    return f"the answer from {address} is not from Heed; is it another server or a proxy?{' ' + text if text else ''}"


@contextmanager
def transport_errors() -> Iterator[None]:
    """Translate httpx's errors.

    Raises:
        Unreachable: httpx got no response.
    """
    try:
        yield
    except httpx.RequestError as error:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
        address = f"{error.request.url.scheme}://{error.request.url.netloc.decode()}"
        if isinstance(error, httpx.TimeoutException):
            raise TimedOut(f"{address} did not answer in time ({reason})") from error
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            reason = (
                "its certificate is not trusted; cacert is a file with certificates to trust, verify=False trusts any"
            )
        elif "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason:
            reason = "the server does not use HTTPS; try http://"
        elif "Connection refused" in reason or "All connection attempts failed" in reason:
            reason = "connection refused; `heed serve` starts a server"
        raise Unreachable(f"no answer from {address}: {reason}") from error


def _seconds(retry_after: str | None) -> float | None:
    """The header's number of seconds. The form with a date, which Heed never sends, is ignored."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
