"""What a call can fail of.

HeedError
├── Unreachable           no answer: nobody listens there, or the connection broke
│   └── TimedOut          none in time
└── Problem               the server said no, and why
    ├── BadRequest        4xx: the request is wrong; ``field`` names the tensor or parameter, where it is one
    │   ├── Unauthorized  401, 403: the API key is missing or wrong
    │   └── NotFound      404: unknown block
    └── ServerFailed      5xx, or an answer that is not Heed's
        ├── Unavailable   429, 503: loading, full, stopping; retried where the server says when
        └── TooLate       504: past its deadline
"""

from typing import Any

import httpx


class HeedError(Exception):
    """The call failed."""


class Unreachable(HeedError):
    """There is no answer; ``__cause__`` is httpx's error."""


class TimedOut(Unreachable):
    """There is no answer in time."""


class Problem(HeedError):
    """An answer that is an error: RFC 9457's members, beside the id under which the server's log has it.

    ``retry_after`` is in seconds, None where the server does not say.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        field: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status} {title}: {detail}")
        self.status = status
        self.title = title
        self.detail = detail
        self.field = field
        self.request_id = request_id
        self.retry_after = retry_after


class BadRequest(Problem):
    pass


class Unauthorized(BadRequest):
    pass


class NotFound(BadRequest):
    pass


class ServerFailed(Problem):
    pass


class Unavailable(ServerFailed):
    pass


class TooLate(ServerFailed):
    pass


KINDS = {401: Unauthorized, 403: Unauthorized, 404: NotFound, 429: Unavailable, 503: Unavailable, 504: TooLate}


def problem(response: httpx.Response) -> Problem:
    """The error that an answer is, whoever wrote it: the server, its V2 face, or a proxy before it."""
    status = response.status_code
    said = _members(response)
    return KINDS.get(status, ServerFailed if status >= 500 else BadRequest)(
        status,
        str(said.get("title") or response.reason_phrase),
        str(said.get("detail") or said.get("error") or response.text[:200]),
        said.get("field"),
        response.headers.get("X-Request-ID"),
        _seconds(response.headers.get("Retry-After")),
    )


def unreachable(error: httpx.RequestError) -> Unreachable:
    """httpx's error as one of ours."""
    what = str(error) or type(error).__name__
    address = f"{error.request.url.scheme}://{error.request.url.netloc.decode()}"
    if isinstance(error, httpx.TimeoutException):
        return TimedOut(f"{address} did not answer in time ({what})")
    return Unreachable(f"no answer from {address}: {what}")


def _members(response: httpx.Response) -> dict[str, Any]:
    try:
        said = response.json()
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _seconds(retry_after: str | None) -> float | None:
    """A number of seconds; the form with a date is not one that Heed sends."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
