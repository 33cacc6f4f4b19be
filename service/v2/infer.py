"""``POST /v2/models/{model}[/versions/{version}]/infer``: decode, run, encode."""

import numpy as np
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from service.body import Body, Headers, receive_body
from service.errors import Malformed, TimedOut
from service.model import Model
from service.offload import (
    PER_BYTE_DEFLATED,
    PER_BYTE_INFLATED,
    PER_JSON_BYTE,
    PER_MULTIPLICATION,
    Offload,
)
from service.respond import respond
from service.settings import Settings
from service.timing import Timing
from service.v2.compression import accepted, deflate, inflate
from service.v2.decode import Asked, decode, decode_known, decode_raw
from service.v2.encode import cost_of_writing, encode
from service.v2.paths import OF_MODEL, OF_VERSION

JSON_LENGTH = "Inference-Header-Content-Length"
HEADER = JSON_LENGTH.lower().encode()
UNKNOWN_COST = float("inf")  # of a foreign graph: never on the event loop


class Infer:
    """Runs a model on the tensors of the body: raw ASGI, as this is the way that has to be short."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["app"].state
        path = scope["path_params"]
        model = state.repository.model(path["model"], path.get("version"))
        headers, timing = scope["state"]["headers"], scope["state"]["timing"]
        try:
            asked, pieces, answer = await _answer(
                headers, receive, timing, model=model, settings=state.settings, offload=state.offload
            )
        except Exception:
            model.statistics.failed(timing.total)
            raise
        model.statistics.succeeded(asked.held.rows, timing.total, timing.spent)
        await respond(send, pieces, answer)


async def _answer(
    headers: Headers, receive: Receive, timing: Timing, *, model: Model, settings: Settings, offload: Offload
) -> tuple[Asked, list[Body], list[tuple[bytes, bytes]]]:
    json_length = _json_length(headers.get(HEADER))
    body = await _body(headers, receive, timing, settings.max_body_bytes, offload, json_length or 0)
    if json_length is not None and json_length > len(body):
        raise Malformed(f"{JSON_LENGTH} is {json_length}, more than the {len(body)} bytes of the body")
    timing.start()
    asked = await _decode(body, json_length, model, settings.max_memory_bytes, offload)
    timing.lap("decode")
    cost = PER_MULTIPLICATION * model.multiplications(asked.held.sizes) if model.card else UNKNOWN_COST
    found = await offload(cost, run, asked, model, timing)
    cost = sum(map(cost_of_writing, asked.plan.outputs, (found[name] for name in asked.plan.names)))
    pieces, json_length = await offload(cost, encode, asked, found, model, settings.json_non_finite)
    answer = [(b"content-type", b"application/json" if json_length is None else b"application/octet-stream")]
    if json_length is not None:
        answer.append((HEADER, b"%d" % json_length))
    encoding = headers.get(b"accept-encoding") and accepted(
        headers[b"accept-encoding"].decode("latin-1"), settings.compress_responses, sum(map(len, pieces))
    )
    if encoding:
        content = b"".join(pieces)
        pieces = [await offload(PER_BYTE_DEFLATED * len(content), deflate, content, encoding)]
        answer.append((b"content-encoding", encoding.encode()))
    timing.lap("encode")
    return asked, pieces, answer


async def _decode(body: Body, json_length: int | None, model: Model, most_memory: int, offload: Offload) -> Asked:
    if json_length == 0:
        return decode_raw(body, model, most_memory)
    if json_length is None:
        asked: Asked = await offload(PER_JSON_BYTE * len(body), decode, body, None, model, most_memory)
        return asked
    content, attached = bytes(body[:json_length]), body[json_length:]
    known = decode_known(content, attached, model)
    if known is not None:
        return known
    asked = await offload(PER_JSON_BYTE * json_length, decode, content, attached, model, most_memory)
    return asked


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


async def _body(
    headers: Headers, receive: Receive, timing: Timing, longest: int, offload: Offload, json_length: int
) -> Body:
    """The body, inflated, with what follows its JSON aligned in memory where it is long."""
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    body = await receive_body(receive, headers, longest, json_length)
    if encoding == b"identity":
        return body
    timing.start()
    cost = PER_BYTE_INFLATED * len(body)
    inflated: Body = await offload(cost, inflate, body, encoding.decode("latin-1"), longest)
    timing.lap("decode")
    return inflated


def _json_length(header: bytes | None) -> int | None:
    if header is None:
        return None
    if not (header.isdigit() and len(header) <= 10 and int(header) < 2**31):
        raise Malformed(f"expected {JSON_LENGTH} to be a whole number of bytes, got {header[:20].decode('latin-1')!r}")
    return int(header)


routes = [
    Route(f"/v2{path}/infer", Infer(), methods=["POST"], include_in_schema=False) for path in (OF_MODEL, OF_VERSION)
]
