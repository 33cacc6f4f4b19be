"""``POST /v2/models/{model}[/versions/{version}]/infer``: decode, run, encode."""

import time

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.body import receive
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
from service.settings import Settings
from service.timing import Timing
from service.v2.compression import accepted, deflate, inflate
from service.v2.decode import Asked, decode
from service.v2.encode import cost_of_writing, encode
from service.v2.paths import OF_MODEL, OF_VERSION

JSON_LENGTH = "Inference-Header-Content-Length"
ALIGNMENT = 16  # bytes; where Python's bytes begin in memory, and more than any number needs
UNKNOWN_COST = float("inf")  # of a foreign graph: never on the event loop


async def infer(request: Request) -> Response:
    """Run a model on the tensors of the body."""
    state = request.app.state
    repository: Repository = state.repository
    model = repository.model(request.path_params["model"], request.path_params.get("version"))
    timing = Timing.of(request.scope)
    try:
        asked, response = await _answer(request, state.settings, state.offload, model, timing)
    except Exception:
        model.statistics.failed(timing.total)
        raise
    model.statistics.succeeded(asked.rows, timing.total, timing.spent)
    return response


async def _answer(
    request: Request, settings: Settings, offload: Offload, model: Model, timing: Timing
) -> tuple[Asked, Response]:
    headers = request.headers
    json_length = _json_length(headers.get(JSON_LENGTH))
    body = await _body(request, settings.max_body_bytes, offload, timing, -(json_length or 0) % ALIGNMENT)
    if json_length is not None and json_length > len(body):
        raise Malformed(f"{JSON_LENGTH} is {json_length}, more than the {len(body)} bytes of the body")
    with timing("decode"):
        cost = PER_JSON_BYTE * len(body)
        asked: Asked = await offload(cost, decode, body, json_length, model, settings.max_memory_bytes)
    cost = PER_MULTIPLICATION * model.multiplications(asked.sizes) if model.card else UNKNOWN_COST
    found = await offload(cost, run, asked, model, timing, time.perf_counter_ns())
    with timing("encode"):
        cost = sum(map(cost_of_writing, asked.outputs, (found[name] for name in asked.names)))
        content, json_length = await offload(cost, encode, asked, found, model, settings.json_non_finite)
        answer = {} if json_length is None else {JSON_LENGTH: str(json_length)}
        encoding = accepted(headers.get("accept-encoding", ""), settings.compress_responses, len(content))
        if encoding:
            content = await offload(PER_BYTE_DEFLATED * len(content), deflate, content, encoding)
            answer["Content-Encoding"] = encoding
    media = "application/json" if json_length is None else "application/octet-stream"
    return asked, Response(content, 200, answer, media)


def run(asked: Asked, model: Model, timing: Timing, decoded: int) -> dict[str, np.ndarray]:
    """The outputs asked for, unless the deadline is past; what it waited since ``decoded`` is queueing.

    Raises:
        TimedOut: it is.
    """
    timing.spent["queue"] += time.perf_counter_ns() - decoded
    if asked.timeout and timing.total > 1000 * asked.timeout:
        raise TimedOut(f"Request timeout expired: {asked.timeout:,} microseconds passed before it could be run")
    with timing("compute"):
        return model.run(asked.inputs, asked.names, asked.sizes)


async def _body(request: Request, longest: int, offload: Offload, timing: Timing, align: int) -> memoryview:
    """The body, inflated, with what follows its JSON aligned in memory."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity":
        return memoryview(await receive(request, longest, align))[align:]
    body = memoryview(await receive(request, longest))
    with timing("decode"):
        cost = PER_BYTE_INFLATED * len(body)
        return memoryview(await offload(cost, inflate, body, encoding, longest, align))[align:]


def _json_length(header: str | None) -> int | None:
    if header is None:
        return None
    if not (header.isascii() and header.isdecimal() and len(header) <= 10 and int(header) < 2**31):
        raise Malformed(f"expected {JSON_LENGTH} to be a whole number of bytes, got {header[:20]!r}")
    return int(header)


# No dependency injection, no parsing of bodies by FastAPI: this is the way that has to be short.
routes = [
    Route(f"/v2{path}/infer", infer, methods=["POST"], include_in_schema=False) for path in (OF_MODEL, OF_VERSION)
]
