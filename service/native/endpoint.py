"""``POST /v1/attention/{block}``."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from starlette.routing import Route
from starlette.types import ASGIApp

from service.codec.json_slices import SEND_TENSORS
from service.codec.json_writer import write_json
from service.engine.engine import Engine
from service.http.body import SMALLER, Body, Headers, require_json
from service.http.direct import RequestContext
from service.http.response import JSON, Fields, Pieces
from service.inference.endpoint import MAX_CHECKED, InferenceEndpoint, R
from service.inference.source import InputSource, SourceInputs, joined
from service.inference.stages import Stage, Stages
from service.model.graph import Arrays
from service.model.model import Model
from service.native.request import AttentionRequest, ParsedRequest, complete, read
from service.native.response import build_response, with_field
from service.repository.repository import Repository
from service.settings import Settings


class NativeEndpoint(InferenceEndpoint[R]):
    """The base of the native API's endpoints: a JSON body, for the block that the path names."""

    api = "native"
    smaller = f"{SMALLER}, or tensors as base64"
    advice = f'{SEND_TENSORS}, and files in a list as {{"base64": "..."}}'

    def model(self, path_params: Mapping[str, Any]) -> Model:
        return self.repository.block(path_params["block"])

    def json_length(self, headers: Headers) -> None:
        require_json(headers)

    def complete(
        self,
        parsed: ParsedRequest,
        tensors: dict[str, np.ndarray],
        model: Model,
        context: RequestContext,
    ) -> Stages[AttentionRequest]:
        """The request with these ``tensors``, in the order of the model's inputs, and the inputs of its source.

        It is planned in a thread where these take long to be added, or where there are many numbers to check.

        Raises:
            Malformed: an input that another field is computed to, too.
            Invalid, TooMuchMemory: as ``request.complete``.
            NotFound, Gone, Conflict, TooLarge, UnsupportedMedia: as ``InputSource.open`` and ``tensors``.
        """
        stored: SourceInputs | None = None
        if parsed.reference is not None:
            made = joined(tensors, (yield from self.source.tensors(parsed.reference, model, context)))
            tensors = {name: made[name] for name in model.inputs if name in made}
            stored = yield from self.source.open(parsed.reference, model, context)
        work = partial(complete, parsed, tensors, model, self.cache(model), self.settings.max_memory_bytes, stored)
        checked = sum(tensors[name].size for name in model.checked if name in tensors)
        is_long = checked > MAX_CHECKED or (stored is not None and stored.is_long_to_add)
        request: AttentionRequest = (yield Stage(self.checking, 0, work)) if is_long else work()
        request.task.deadline = self.deadline(context)
        return request

    def encode_answer(
        self,
        request: AttentionRequest,
        outputs: dict[str, np.ndarray],
        context: RequestContext,
        tokens: Sequence[bytes] = (),
        of_outputs: Callable[[Arrays], Stages[list[bytes]]] | None = None,
    ) -> Stages[tuple[Pieces, Fields]]:
        """The response to ``request``; ``tokens`` are fields of its JSON before the outputs, in pieces.

        ``of_outputs`` makes such fields of a set of outputs.
        """
        plan, count = request.plan, request.answer_count * request.plan.output_count
        frame, arrays = yield from self._answered(request, outputs, tokens, of_outputs, False)
        for name, further in (request.stored.further if request.stored else {}).items():
            if isinstance(further, bytes):
                frame = with_field(frame, name, [further])
            else:
                inner, more = yield from self._answered(request, further, (), of_outputs, True)
                frame, arrays = with_field(frame, name, inner), [*arrays, *more]
        pieces = yield Stage(self.writing(plan.decimals), count, write_json(frame, arrays, plan.decimals))
        return (yield from self.compress([*pieces], JSON, context))

    def _answered(
        self,
        request: AttentionRequest,
        outputs: Arrays,
        tokens: Sequence[bytes],
        of_outputs: Callable[[Arrays], Stages[list[bytes]]] | None,
        is_inner: bool,
    ) -> Stages[tuple[list[bytes], list[np.ndarray | bytes]]]:
        """The JSON around the arrays of a set of outputs, and these."""
        answer, fields = request.plan.run.answer, [*tokens]
        if of_outputs is not None:
            made = yield from of_outputs(outputs)
            fields += [b",", *made] if fields and made else made
        if answer is not None:
            outputs = yield from self.select(answer, outputs)
        framed: tuple[list[bytes], list[np.ndarray | bytes]] = yield Stage(
            self.preparing, request.plan.output_count, partial(build_response, request, outputs, fields, is_inner)
        )
        return framed

    def encoding_answer_ns(self, request: AttentionRequest, context: RequestContext) -> float:
        """The expected time of ``encode_answer`` in nanoseconds; infinity where the response is compressed."""
        if self.may_compress(context.headers):
            return math.inf
        plan = request.plan
        expected_ns = self.writing(plan.decimals).expected(plan.output_count)
        return expected_ns if plan.run.answer is None else expected_ns + self.selecting_ns(plan.run.answer)


class AttentionEndpoint(NativeEndpoint[AttentionRequest]):
    """Runs a block on the tensors of the body."""

    encode = NativeEndpoint.encode_answer
    encoding_ns = NativeEndpoint.encoding_answer_ns

    def decode(self, model: Model, body: tuple[bytes, Body], context: RequestContext) -> Stages[AttentionRequest]:
        content, _ = body
        rest, parts = yield from self.cut(content)
        steps = read(rest, parts, model, self.source, context.reservation)
        parsed, tensors = yield Stage(self.decoding, len(content), steps)
        return (yield from self.complete(parsed, tensors, model, context))


def block_routes(**endpoints: ASGIApp) -> list[Route]:
    """The routes ``/v1/<name>/{block}`` of ``endpoints`` by name, with and without a slash at the end.

    The documentation has a path for each block.
    """
    return [
        Route(f"/v1/{name}/{{block}}{slash}", endpoint, methods=["POST"], include_in_schema=False)
        for name, endpoint in endpoints.items()
        for slash in ("", "/")
    ]


def routes(repository: Repository, settings: Settings, engine: Engine, source: InputSource[Any]) -> list[Route]:
    """The routes that run blocks."""
    return block_routes(attention=AttentionEndpoint(repository, settings, engine, source))
