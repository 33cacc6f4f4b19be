"""``POST /v1/lens/{model}``: the tokens that the hidden states of each layer predict."""

from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import orjson

from service.base.cost import AssumedCost, CostModel
from service.base.errors import Invalid
from service.codec.json_reader import JsonReader
from service.codec.json_writer import write_json
from service.http.direct import RequestContext
from service.http.response import Pieces
from service.inference.endpoint import PLANNING_NS
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
        self._planning, self._naming, self._writing = AssumedCost(PLANNING_NS), CostModel(), CostModel()

    def check(self, model: Model) -> None:
        version = self._source.version(model)
        if not model.signature.scores_tokens:
            raise Invalid(f"model '{model.name}' has no lens: its output is not the logits of tokens")
        if version.sites.head is None:
            raise Invalid(f"model '{model.name}' has no lens: its head alone does not give its output")

    def decode(self, model: Model, content: bytes, _path: str, context: RequestContext) -> Stages[LensRequest]:
        version, pipeline = self._source.version(model), self.pipeline
        rest, parts = yield from pipeline.cut(content)
        reading = partial(read_lens, rest, parts, self._source.reading(JsonReader(parts), model, version.sites))
        fields: LensFields = yield Stage(pipeline.reading, len(content), reading)
        values = yield from self._source.values(fields.interventions, model, context)
        inputs, tokens = yield from self._source.own_inputs(fields.own, model, context)
        planning = partial(Lens, version, values, inputs, fields.count, fields.selected)
        lens: Lens = yield Stage(self._planning, 0, planning)
        yield from self._source.open_graphs(version, (WHOLE, HEAD))
        context.reservation.add(lens.kept_bytes)
        return LensRequest(lens, tokens, pipeline.deadline(context))

    async def answer(self, request: LensRequest) -> Pieces:
        lens, most = request.lens, self.pipeline.settings.max_memory_bytes
        for task in in_order(lens.first_task(most), lens.tasks(most), request.deadline):
            await self.engine.run(task)
        return await run_stages(self._written(request), self.engine.offload)

    def _written(self, request: LensRequest) -> Stages[Pieces]:
        lens, size = request.lens, request.lens.indices.size
        tokens: bytes = yield Stage(self._naming, size, partial(_tokens_json, lens))
        frame, lists = _document(request, tokens)
        pieces: Pieces = yield Stage(self._writing, size, write_json(frame, lists))
        return pieces


def _tokens_json(lens: Lens) -> bytes:
    """The texts of the tokens, by many short calls: in a long one the interpreter's lock is held."""
    tokenizer = lens.model.tokenizer
    if tokenizer is None:
        return b""
    rows = lens.indices.reshape(-1, lens.indices.shape[-1]).tolist()
    names = {index: orjson.dumps(tokenizer.token(index)) for index in {*chain.from_iterable(rows)}}
    cells = [b"[%b]" % b",".join([names[index] for index in row]) for row in rows]
    count = len(lens.positions)
    layers = [b"[%b]" % b",".join(cells[start : start + count]) for start in range(0, len(cells), count)]
    return b"[%b]" % b",".join(layers)


def _document(request: LensRequest, tokens: bytes) -> tuple[list[bytes], list[np.ndarray | bytes]]:
    """The JSON of an answer around its lists, and these, as ``write_json`` takes them."""
    lens = request.lens
    selected = {"model": lens.model.name, "layers": lens.layers, "positions": lens.positions}
    start = orjson.dumps(selected, option=orjson.OPT_SERIALIZE_NUMPY)[:-1]
    parts: dict[bytes, np.ndarray | bytes] = {
        start + b',"lens":{"indices":': lens.indices,
        b',"probabilities":': lens.probabilities,
        b',"output_probabilities":': lens.output_probabilities,
        **({b',"tokens":': tokens} if tokens else {}),
        b'},"ranks":': orjson.dumps([[rank or None for rank in ranks] for ranks in lens.ranks.tolist()]),
    }
    end = b"".join([*([b","] if request.tokens else []), *request.tokens, b"}"])
    return [*parts, end], [*parts.values()]
