"""``POST /v2/models/{model}[/versions/{version}]/infer``: decode, run, encode."""

from collections.abc import Mapping
from typing import Any

from starlette.routing import Route
from starlette.types import Receive

from service.body import JSON_LENGTH, Body, Headers, receive_body, receive_parts, split
from service.cost import Cost
from service.endpoint import JSON, Endpoint, Fields, Pieces
from service.engine import Engine
from service.errors import Malformed
from service.model import Model
from service.repository import Repository
from service.respond import join, length_of
from service.settings import Settings
from service.timing import Timing
from service.turns import at_once, in_turns
from service.v2.compression import accepted, deflate, inflate
from service.v2.decode import decode, decode_known, decode_raw, work
from service.v2.encode import encode, numbers_written, prepare
from service.v2.paths import OF_MODEL, OF_VERSION
from service.v2.plan import Plan
from service.v2.skeleton import skeleton
from service.work import Work

HEADER = JSON_LENGTH.lower().encode()
OCTETS = (b"content-type", b"application/octet-stream")


class Infer(Endpoint):
    """Runs a model on the tensors of the body."""

    face = "v2"

    def __init__(self, repository: Repository, settings: Settings, engine: Engine) -> None:
        super().__init__(repository, settings, engine)
        self._understanding, self._inflating, self._deflating = Cost(), Cost(), Cost()

    def model(self, path: Mapping[str, Any]) -> Model:
        return self.repository.model(path["model"], path.get("version"))

    async def answer(
        self, model: Model, headers: Headers, receive: Receive, timing: Timing
    ) -> tuple[Work, Pieces, Fields]:
        json_length = _json_length(headers.get(HEADER))
        content, attached = await self._receive(headers, receive, timing, json_length)
        most, measured = self.settings.max_memory_bytes, self.engine.measured
        asked, cut = None, skeleton(content)
        if json_length == 0:
            asked = decode_raw(bytes(attached), model, most)
        elif cut is not None and (plan := model.plans.get(cut.content)):
            asked = await in_turns(self.decoding, len(content), decode_known(plan, content, attached, cut, model))
        if asked is None:
            asked = await measured(self._understanding, len(content), decode, content, cut, attached, model, most)
        todo = work(asked, model, self.deadline(headers, timing, asked.plan.timeout))
        timing.lap("decode")
        found = await self.run(todo, timing, receive)
        asked.plan.written = numbers = numbers_written(asked.plan, found)
        non_finite = self.settings.json_non_finite
        answer = await measured(self.preparing, numbers, prepare, asked, found, model, non_finite)
        pieces, json_length = await in_turns(self.encoding, numbers, encode(answer))
        fields = _fields(json_length)
        encoding = self._encoding(headers, pieces) if b"accept-encoding" in headers else None
        if encoding is not None:
            whole = join(pieces)
            pieces = [await measured(self._deflating, len(whole), deflate, whole, encoding)]
            fields = [*fields, (b"content-encoding", encoding.encode())]
        timing.lap("encode")
        return todo, pieces, fields

    def first(self, headers: Headers, length: int) -> int:
        json_length = _json_length(headers.get(HEADER))
        return length if json_length is None else json_length

    def short(
        self, model: Model, headers: Headers, content: bytes, attached: Body, timing: Timing
    ) -> tuple[Work, Pieces, Fields] | None:
        if b"content-encoding" in headers or len(content) + len(attached) > self.settings.max_body_bytes:
            return None
        cut = skeleton(content)
        plan = model.plans.get(cut.content) if cut is not None else None
        if cut is None or plan is None or not self._is_short(plan, content):
            return None
        asked = at_once(decode_known(plan, content, attached, cut, model))
        if asked is None:
            return None
        todo = work(asked, model, timing.began + 1000 * plan.timeout if plan.timeout else None)
        if todo.is_late:
            return None
        timing.lap("decode")
        found = self.engine.run_here(todo)
        timing.lap_as(0, todo.computed)
        pieces, json_length = at_once(encode(prepare(asked, found, model, self.settings.json_non_finite)))
        if b"accept-encoding" in headers and self._encoding(headers, pieces):
            return None
        timing.lap("encode")
        return todo, pieces, _fields(json_length)

    def _is_short(self, plan: Plan, content: bytes) -> bool:
        """The engine is idle, and all stages together are quick enough for the event loop."""
        assert plan.need is not None, "it was kept"
        nanoseconds = plan.need.graph.cost.expected(plan.need.size)
        if plan.lists:
            nanoseconds += self.decoding.expected(len(content))
        if plan.written:
            nanoseconds += self.encoding.expected(plan.written)
        return self.engine.is_short(nanoseconds)

    async def _receive(
        self, headers: Headers, receive: Receive, timing: Timing, json_length: int | None
    ) -> tuple[bytes, Body]:
        """The JSON and what follows it, inflated."""
        longest = self.settings.max_body_bytes
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding == b"identity" and json_length is not None:
            parts = await receive_parts(receive, headers, longest, json_length)
            timing.start()
            return parts
        body = await receive_body(receive, headers, longest)
        timing.start()
        if encoding != b"identity":
            name = encoding.decode("latin-1")
            body = await self.engine.measured(self._inflating, len(body), inflate, body, name, longest)
        return split(body, len(body) if json_length is None else json_length)

    def _encoding(self, headers: Headers, pieces: Pieces) -> str | None:
        accept = headers[b"accept-encoding"].decode("latin-1")
        return accepted(accept, self.settings.compress_responses, length_of(pieces))


def _json_length(header: bytes | None) -> int | None:
    if header is None:
        return None
    if not (header.isdigit() and len(header) <= 10 and int(header) < 2**31):
        raise Malformed(f"expected {JSON_LENGTH} to be a whole number of bytes, got {header[:20].decode('latin-1')!r}")
    return int(header)


def _fields(json_length: int | None) -> Fields:
    return JSON if json_length is None else [OCTETS, (HEADER, b"%d" % json_length)]


def routes(repository: Repository, settings: Settings, engine: Engine) -> list[Route]:
    """With and without a version, with and without a slash at the end."""
    infer = Infer(repository, settings, engine)
    paths = (f"/v2{path}/infer{slash}" for slash in ("", "/") for path in (OF_MODEL, OF_VERSION))
    return [Route(path, infer, methods=["POST"], include_in_schema=False) for path in paths]
