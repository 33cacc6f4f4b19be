"""``POST /v2/models/{model}[/versions/{version}]/infer``."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from starlette.routing import Route

from service.base.budget import Reservation
from service.base.cost import NANOSECOND, CostModel
from service.base.steps import drain
from service.codec.json_writer import write_json
from service.engine.engine import Engine
from service.engine.task import InferenceTask
from service.http.body import JSON_LENGTH_HEADER, Body, Headers, read_json_length
from service.http.direct import RequestContext
from service.http.response import JSON, Fields, Pieces, length_of
from service.inference.endpoint import MAX_CHECKED, MIN_BYTE_NS, InferenceEndpoint
from service.inference.source import InputSource, SourceInputs
from service.inference.stages import Stage, Stages
from service.model.model import Model
from service.repository.repository import Repository
from service.settings import Settings
from service.v2.datatypes import BYTES, WRITTEN_BYTES, characters_of, pack_strings
from service.v2.infer.classes import RANKING_NS, class_texts, largest
from service.v2.infer.plan import MAX_TEMPLATE_BYTES, InferPlan, RequestContent, RequestTemplate, find_template
from service.v2.infer.request import InferRequest, complete, decode_raw, parse, read_lists, read_tensors, take_known
from service.v2.infer.response import build_response
from service.v2.infer.tensors import is_packed
from service.v2.paths import OF_MODEL, OF_VERSION

OCTETS = (b"content-type", b"application/octet-stream")


class InferEndpoint(InferenceEndpoint[InferRequest]):
    """Runs a model on the tensors of the body."""

    api = "v2"

    def __init__(self, repository: Repository, settings: Settings, engine: Engine, source: InputSource[Any]) -> None:
        super().__init__(repository, settings, engine, source)
        self._parsing, self._unpacking = (CostModel(MIN_BYTE_NS) for _ in range(2))
        self._ranking, self._strings = CostModel(NANOSECOND), CostModel()

    def model(self, path_params: Mapping[str, Any]) -> Model:
        return self.repository.model(path_params["model"], path_params.get("version"))

    def json_length(self, headers: Headers) -> int | None:
        return read_json_length(headers)

    def decode(self, model: Model, body: tuple[bytes, Body], context: RequestContext) -> Stages[InferRequest]:
        (content, attached), reservation = body, context.reservation
        cache, max_memory_bytes = self.cache(model), self.settings.max_memory_bytes
        if not content and read_json_length(context.headers) == 0:
            steps = decode_raw(attached, model, max_memory_bytes, reservation)
            is_long = any(is_packed(tensor.dtype) for tensor in model.inputs.values())
            inputs, plan = (yield Stage(self._unpacking, len(attached), steps)) if is_long else drain(steps)
            return self._request(model, context, inputs, plan)
        template: RequestTemplate | None = None
        known: InferPlan | None = cache.get((content,)) if len(content) <= MAX_TEMPLATE_BYTES else None
        if known is None:  # else the JSON has no id and no numbers
            template = find_template(content)
            known = None if template is None else cache.get(template.content)
        if known is not None:
            lists: dict[str, np.ndarray] | None = {}
            if template is not None and known.content.json_inputs:
                lists = yield Stage(self.decoding, len(content), read_lists(known, content, template, reservation))
            if lists is not None:
                lists |= yield from self._unpack(known.content, attached, model, reservation)
                if known.content.checked > MAX_CHECKED:
                    inputs = yield Stage(self.checking, 0, partial(take_known, known, lists, attached, model))
                else:
                    inputs = take_known(known, lists, attached, model)
                return self._request(model, context, inputs, known, None if template is None else template.id)
        rest, parts = yield from self.cut(content)
        parsing = partial(parse, rest, parts, model, self.source)
        asked, unread, request_id = yield Stage(self._parsing, len(rest), parsing)
        tensors = yield Stage(self.reading, len(content), read_tensors(unread, model, reservation))
        unpacked = yield from self._unpack(asked, attached, model, reservation)
        stored: SourceInputs | None = None
        if asked.reference is not None:
            stored = yield from self.source.open(asked.reference, model, context)
        work = partial(complete, asked, tensors, unpacked, attached, model, max_memory_bytes, stored)
        inputs, plan = (yield Stage(self.checking, 0, work)) if asked.checked > MAX_CHECKED else work()
        has_id = template is not None and (request_id is None or template.id is not None)
        if template is not None and has_id and plan.run.may_be_cached and asked.follows_from(template, model):
            cache.put(template.content, plan)
        request = self._request(model, context, inputs, plan, request_id)
        request.task.stored = stored
        return request

    def encode(
        self, request: InferRequest, outputs: dict[str, np.ndarray], context: RequestContext
    ) -> Stages[tuple[Pieces, Fields]]:
        plan, model = request.plan, request.task.model
        if not model.spec:
            context.reservation.add(plan.content.response_bytes(outputs))
        if plan.run.answer is not None:
            outputs = yield from self.select(plan.run.answer, outputs)
        if plan.has_classes:
            outputs = yield from self._classified(plan, outputs, model)
        packed: dict[str, list[bytes]] = {}
        if plan.has_strings:
            packed = yield from self._packed(plan, outputs, context.reservation)
        plan.written = count = sum([outputs[name].size for name in plan.text_outputs])
        preparing = partial(build_response, request, outputs, packed, model)
        text, lists, attached = yield Stage(self.preparing, count, preparing)
        if lists:
            decimals = plan.content.selection.decimals
            steps = write_json(text, lists, decimals)
            cost = self._strings if plan.has_strings else self.writing(decimals)
            text = (yield Stage(cost, count, steps)) if count else drain(steps)
        fields = JSON
        if attached and length_of(attached):
            fields = [OCTETS, (JSON_LENGTH_HEADER, b"%d" % length_of(text))]
        return (yield from self.compress([*text, *attached], fields, context))

    def encoding_ns(self, request: InferRequest, context: RequestContext) -> float:
        plan, written = request.plan, request.plan.written
        if written is None or plan.has_strings or self.may_compress(context.headers):
            return math.inf
        expected_ns = self.writing(plan.content.selection.decimals).expected(written) if written else 0.0
        answer = plan.run.answer
        return expected_ns if answer is None else expected_ns + self.selecting_ns(answer)

    def _classified(
        self, plan: InferPlan, outputs: Mapping[str, np.ndarray], model: Model
    ) -> Stages[dict[str, np.ndarray]]:
        """The ``outputs``, those with classes as text.

        Raises:
            Invalid: one of them has no numbers.
        """
        classified = dict(outputs)
        for name, classes in [(one.name, one.classes) for one in plan.outputs if one.classes]:
            array = outputs[name]
            ranking = partial(largest, name, array, classes, model.max_batch_size > 0)
            values, indices = yield Stage(self._ranking, array.size * RANKING_NS, ranking)
            classified[name] = yield Stage(self._strings, indices.size, class_texts(values, indices))
        return classified

    def _packed(
        self, plan: InferPlan, outputs: Mapping[str, np.ndarray], reservation: Reservation
    ) -> Stages[dict[str, list[bytes]]]:
        """The strings among the ``outputs`` that were requested in binary. All strings' text is reserved.

        Raises:
            TooMuchMemory, Overloaded: there is no room for it.
        """
        packed: dict[str, list[bytes]] = {}
        for output in plan.outputs:
            array = outputs[output.name]
            if array.dtype == BYTES:
                characters: int = yield Stage(self._strings, array.size, characters_of(array))
                reservation.add(characters * WRITTEN_BYTES)
                if output.binary:
                    packed[output.name] = yield Stage(self._strings, array.size, pack_strings(array))
        return packed

    def _unpack(
        self, content: RequestContent, attached: Body, model: Model, reservation: Reservation
    ) -> Stages[dict[str, np.ndarray]]:
        """The tensors of strings and flags in the bytes behind the JSON."""
        if not content.packed_inputs:
            return {}
        steps = content.unpack(attached, model, reservation)
        unpacked: dict[str, np.ndarray] = yield Stage(self._unpacking, content.unpacked_bytes, steps)
        return unpacked

    def _request(
        self,
        model: Model,
        context: RequestContext,
        inputs: dict[str, np.ndarray],
        plan: InferPlan,
        request_id: bytes | None = None,
    ) -> InferRequest:
        content = plan.content
        timeout_us = content.timeout_us
        if timeout_us and not self.repository.options_for(model.name).allow_timeout_override:
            timeout_us = 0
        deadline = self.deadline(context, timeout_us)
        task = InferenceTask(
            model, plan.run.estimate, inputs, plan.run.graph_outputs, plan.rows, content.priority, deadline
        )
        return InferRequest(task, plan, request_id)


def routes(repository: Repository, settings: Settings, engine: Engine, source: InputSource[Any]) -> list[Route]:
    """With and without a version, with and without a slash at the end."""
    endpoint = InferEndpoint(repository, settings, engine, source)
    paths = (f"/v2{path}/infer{slash}" for slash in ("", "/") for path in (OF_MODEL, OF_VERSION))
    return [Route(path, endpoint, methods=["POST"], include_in_schema=False) for path in paths]
