"""A response in pieces: joined, unless they are so large that another copy costs more than waiting between them."""

import json
from collections.abc import Sequence
from http import HTTPStatus

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Send

from service.base.errors import CLIENT_CLOSED_REQUEST, HTTP_CODES, HeedError, translated
from service.http.body import Body

JOIN_LIMIT_BYTES = 1 << 16  # a copy of fewer costs nothing
LARGE_BYTES = 1 << 24  # of a response, each piece of which waits until the client has taken the one before
TEXT_BYTES = 16  # of a float32 as JSON with its comma, at most
WRITE_BUFFER_BYTES = 1 << 16  # uvicorn buffers so many before it waits for the client
ERRORS_PAGE = "/docs/guide/errors.html"  # which service/docs_site.py serves
ERROR_CODE = "X-Error-Code"  # of an error of V2, whose body has none
Piece = bytes | np.ndarray  # an array is contiguous
Pieces = list[Piece]
Fields = list[tuple[bytes, bytes]]  # of an HTTP header
JSON: Fields = [(b"content-type", b"application/json")]


async def respond(send: Send, pieces: Sequence[Piece], fields: Sequence[tuple[bytes, bytes]]) -> None:
    """A 200 whose body is ``pieces``, one after another. Returns when little of it is left to write."""
    length = length_of(pieces)
    headers = [*fields, (b"content-length", b"%d" % length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if len(pieces) > 1 and length > LARGE_BYTES:
        for piece in pieces:
            await send({"type": "http.response.body", "body": flat(piece), "more_body": True})
    else:
        await send({"type": "http.response.body", "body": join(pieces), "more_body": length > WRITE_BUFFER_BYTES})
    if length > WRITE_BUFFER_BYTES:
        await send({"type": "http.response.body"})  # waits until the client has taken what came before


def length_of(pieces: Sequence[Piece]) -> int:
    """Bytes of all of them."""
    length = 0
    for piece in pieces:
        length += len(piece) if isinstance(piece, bytes) else piece.nbytes
    return length


def join(pieces: Sequence[Piece]) -> bytes:
    """All of them in one."""
    return b"".join(pieces)  # type: ignore[arg-type]  # an array is a buffer


def flat(piece: Piece) -> Body:
    """A piece as its bytes."""
    return piece if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8).data


def failure(error: BaseException, is_v2: bool) -> tuple[int, str]:
    """The status of the response to a request that failed with ``error``, and the limit that rejected it, or ""."""
    error = translated(error)
    if isinstance(error, HeedError):
        return (error.v2_status if is_v2 else error.status), error.limit
    return (CLIENT_CLOSED_REQUEST if isinstance(error, ClientDisconnect) else 500), ""


def error_response(path: str, error: BaseException) -> Response:
    """``error`` as the API of ``path`` writes it: RFC 9457 problem+json, or V2's ``{"error": ...}``.

    The text of an exception that is not ours is never shown.
    """
    v2, error = path.startswith("/v2"), translated(error)
    if isinstance(error, HeedError):
        status, detail, headers = error.v2_status if v2 else error.status, error.detail, error.headers
        code = error.code
    elif isinstance(error, HTTPException):
        status, detail, headers = error.status_code, error.detail, dict(error.headers or {})
        code = HTTP_CODES.get(status, HTTP_CODES[400])
    else:
        status, detail, headers = 500, "Internal error; see the server's log for this request's X-Request-ID.", {}
        code = HTTP_CODES[500]
    if v2:
        return Response(json.dumps({"error": detail}), status, {**headers, ERROR_CODE: code}, "application/json")
    kind = {"type": f"{ERRORS_PAGE}#{code}", "title": HTTPStatus(status).phrase}
    problem = {**kind, "status": status, "code": code, "detail": detail}
    if isinstance(error, HeedError) and error.field is not None:
        problem["field"] = error.field
    return Response(json.dumps(problem), status, headers, "application/problem+json")
