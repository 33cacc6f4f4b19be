"""``POST /v1/lens/{model}``: the tokens that the hidden states of each layer predict."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from service.base.cost import CostModel
from service.base.errors import Invalid
from service.http.direct import RequestContext
from service.http.response import Pieces
from service.inference.stages import Stage, Stages, run_stages
from service.interventions.intervenable import HEAD
from service.interventions.lens.request import LensFields, read_lens
from service.interventions.lens.runs import Lens
from service.interventions.source import InterventionSource
from service.interventions.tasks import in_order
from service.interventions.values import WHOLE
from service.model.model import Model
from service.native.endpoint import AttentionEndpoint
from service.native.many_runs import ManyRunsEndpoint


@dataclass(frozen=True, slots=True)
class LensRequest:
    """A decoded request; ``tokens`` are fields of its answer, as JSON."""

    lens: Lens
    tokens: list[bytes]
    deadline: int | None
    stream: bool = False


class LensEndpoint(ManyRunsEndpoint[LensRequest]):
    """Lenses of models of ``source``."""

    api = "lens"

    def __init__(self, pipeline: AttentionEndpoint, source: InterventionSource) -> None:
        super().__init__(pipeline)
        self._source = source
        self._planning, self._writing = CostModel(), CostModel()

    def check(self, model: Model) -> None:
        version = self._source.version(model)
        if not model.signature.scores_tokens:
            raise Invalid(f"model '{model.name}' has no lens: its output is not the logits of tokens")
        if version.sites.head is None:
            raise Invalid(f"model '{model.name}' has no lens: its head alone does not give its output")

    def decode(self, model: Model, content: bytes, _path: str, context: RequestContext) -> Stages[LensRequest]:
        version, pipeline = self._source.version(model), self.pipeline
        rest, parts = yield from pipeline.cut(content)
        reading = partial(read_lens, rest, parts, model, version.sites, pipeline.settings.max_text_bytes)
        fields: LensFields = yield Stage(pipeline.reading, len(content), reading)
        values = yield from self._source.values(fields.interventions, model, context)
        inputs, tokens = yield from self._source.own_inputs(fields.own, model, context)
        planning = partial(Lens, version, values, inputs, fields.count, fields.selected)
        lens: Lens = yield Stage(self._planning, 1, planning)
        yield from self._source.open_graphs(version, (WHOLE, HEAD))
        context.reservation.add(lens.kept_bytes)
        return LensRequest(lens, tokens, pipeline.deadline(context))

    async def answer(self, request: LensRequest) -> Pieces:
        lens, most = request.lens, self.pipeline.settings.max_memory_bytes
        for task in in_order(lens.first_task(most), lens.tasks(most), request.deadline):
            await self.engine.run(task)
        return [await run_stages(self._written(request), self.engine.offload)]

    def _written(self, request: LensRequest) -> Stages[bytes]:
        written: bytes = yield Stage(self._writing, request.lens.indices.size, partial(_json, request))
        return written


def _json(request: LensRequest) -> bytes:
    lens, tokenizer = request.lens, request.lens.model.tokenizer
    fields: dict[str, Any] = {
        "model": lens.model.name,
        "layers": lens.layers,
        "positions": lens.positions,
        "lens": {"indices": lens.indices, "probabilities": lens.probabilities},
        "ranks": [[rank or None for rank in ranks] for ranks in lens.ranks.tolist()],
    }
    if tokenizer is not None:
        names = {index: tokenizer.token(index) for index in set(lens.indices.reshape(-1).tolist())}
        fields["lens"]["tokens"] = [
            [[names[index] for index in row] for row in layer] for layer in lens.indices.tolist()
        ]
    tokens = [b",", *request.tokens] if request.tokens else []
    return b"".join([orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)[:-1], *tokens, b"}"])
