"""``POST /v2/models/{model}[/versions/{version}]/infer``: decode, run, encode."""

import numpy as np
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from service.body import JSON_LENGTH, Body, Headers, receive_body, receive_parts, split
from service.errors import Malformed, TimedOut
from service.model import Model
from service.offload import (
    PER_BYTE_DEFLATED,
    PER_BYTE_INFLATED,
    PER_JSON_BYTE,
    PER_MULTIPLICATION,
    Offload,
)
from service.repository import Repository
from service.respond import respond
from service.settings import Settings
from service.timing import Timing
from service.v2.compression import accepted, deflate, inflate
from service.v2.decode import Asked, decode, decode_raw
from service.v2.encode import cost_of_writing, encode
from service.v2.paths import OF_MODEL, OF_VERSION

HEADER = JSON_LENGTH.lower().encode()
JSON = [(b"content-type", b"application/json")]
OCTETS = (b"content-type", b"application/octet-stream")
UNKNOWN_COST = float("inf")  # of a foreign graph: never on the event loop


class Infer:
    """Runs a model on the tensors of the body: raw ASGI, as this is the way that has to be short."""

    def __init__(self, repository: Repository, settings: Settings, offload: Offload) -> None:
        self._repository = repository
        self._settings = settings
        self._offload = offload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers, timing = scope["path_params"], scope["state"]["headers"], scope["state"]["timing"]
        model = self._repository.model(path["model"], path.get("version"))
        try:
            asked, pieces, answer = await self._answer(model, headers, receive, timing)
        except Exception:
            model.statistics.failed(timing.total)
            raise
        model.statistics.succeeded(asked.held.rows, timing.total, timing.spent)
        await respond(send, pieces, answer)

    async def _answer(
        self, model: Model, headers: Headers, receive: Receive, timing: Timing
    ) -> tuple[Asked, list[Body], list[tuple[bytes, bytes]]]:
        json_length = _json_length(headers.get(HEADER))
        content, attached = await self._receive(headers, receive, timing, json_length)
        most = self._settings.max_memory_bytes
        if json_length == 0:
            asked = decode_raw(bytes(attached), model, most)
        else:
            cost = PER_JSON_BYTE * len(content)
            asked = await self._offload(cost, decode, content, attached, model, most)
        timing.lap("decode")
        cost = PER_MULTIPLICATION * asked.held.multiplications if model.card else UNKNOWN_COST
        found = await self._offload(cost, run, asked, model, timing)
        cost = sum(map(cost_of_writing, asked.plan.outputs, found.values()))
        pieces, json_length = await self._offload(cost, encode, asked, found, model, self._settings.json_non_finite)
        answer = JSON if json_length is None else [OCTETS, (HEADER, b"%d" % json_length)]
        if b"accept-encoding" in headers:
            pieces, answer = await self._compress(headers[b"accept-encoding"].decode("latin-1"), pieces, answer)
        timing.lap("encode")
        return asked, pieces, answer

    async def _receive(
        self, headers: Headers, receive: Receive, timing: Timing, json_length: int | None
    ) -> tuple[bytes, Body]:
        """The JSON and what follows it, inflated."""
        longest = self._settings.max_body_bytes
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding == b"identity" and json_length is not None:
            parts = await receive_parts(receive, headers, longest, json_length)
            timing.start()
            return parts
        body = await receive_body(receive, headers, longest)
        timing.start()
        if encoding != b"identity":
            cost = PER_BYTE_INFLATED * len(body)
            body = await self._offload(cost, inflate, body, encoding.decode("latin-1"), longest)
        return split(body, len(body) if json_length is None else json_length)

    async def _compress(
        self, accept: str, pieces: list[Body], answer: list[tuple[bytes, bytes]]
    ) -> tuple[list[Body], list[tuple[bytes, bytes]]]:
        encoding = accepted(accept, self._settings.compress_responses, sum(map(len, pieces)))
        if encoding is None:
            return pieces, answer
        content = b"".join(pieces)
        deflated = await self._offload(PER_BYTE_DEFLATED * len(content), deflate, content, encoding)
        return [deflated], [*answer, (b"content-encoding", encoding.encode())]


def run(asked: Asked, model: Model, timing: Timing) -> dict[str, np.ndarray]:
    """The outputs asked for, unless the deadline is past; what it waited since it was decoded is queueing.

    Raises:
        TimedOut: it is.
    """
    timing.lap("queue")
    if asked.plan.timeout and timing.total > 1000 * asked.plan.timeout:
        raise TimedOut(f"Request timeout expired: {asked.plan.timeout:,} microseconds passed before it could be run")
    found = model.run(asked.held.graph, asked.inputs, asked.plan.names)
    timing.lap("compute")
    return found


def _json_length(header: bytes | None) -> int | None:
    if header is None:
        return None
    if not (header.isdigit() and len(header) <= 10 and int(header) < 2**31):
        raise Malformed(f"expected {JSON_LENGTH} to be a whole number of bytes, got {header[:20].decode('latin-1')!r}")
    return int(header)


def routes(repository: Repository, settings: Settings, offload: Offload) -> list[Route]:
    """With and without a version, with and without a slash at the end."""
    infer = Infer(repository, settings, offload)
    paths = (f"/v2{path}/infer{slash}" for slash in ("", "/") for path in (OF_MODEL, OF_VERSION))
    return [Route(path, infer, methods=["POST"], include_in_schema=False) for path in paths]
