"""``POST /v1/sweep/{model}``: an intervention at each place of a grid; the numbers at once, or row by row."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson

from service.base.cost import AssumedCost
from service.codec.json_reader import JsonReader
from service.http.direct import RequestContext
from service.http.response import Pieces
from service.inference.endpoint import PLANNING_NS
from service.inference.stages import Stage, Stages
from service.interventions.source import InterventionSource
from service.interventions.sweep.request import SweepFields, read_sweep
from service.interventions.sweep.runs import Sweep
from service.interventions.tasks import in_order
from service.model.model import Model
from service.native.endpoint import AttentionEndpoint
from service.native.many_runs import ManyRunsEndpoint, event


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """A decoded request; ``tokens`` are fields of its answer, as JSON."""

    sweep: Sweep
    tokens: list[bytes]
    stream: bool
    deadline: int | None


class SweepEndpoint(ManyRunsEndpoint[SweepRequest]):
    """Sweeps over models of ``source``."""

    api = "sweep"

    def __init__(self, pipeline: AttentionEndpoint, source: InterventionSource) -> None:
        super().__init__(pipeline)
        self._source = source
        self._planning = AssumedCost(PLANNING_NS)

    def check(self, model: Model) -> None:
        self._source.version(model)

    def decode(self, model: Model, content: bytes, _path: str, context: RequestContext) -> Stages[SweepRequest]:
        version, pipeline = self._source.version(model), self.pipeline
        rest, parts = yield from pipeline.cut(content)
        reading = partial(read_sweep, rest, parts, self._source.reading(JsonReader(parts), model, version.sites))
        fields: SweepFields = yield Stage(pipeline.reading, len(content), reading)
        values = yield from self._source.values([fields.intervention], model, context)
        inputs, tokens = yield from self._source.own_inputs(fields.own, model, context)
        planning = partial(Sweep, version, values, inputs, fields.axes, fields.metric, fields.position)
        sweep: Sweep = yield Stage(self._planning, 0, planning)
        yield from self._source.open_graphs(version, sweep.graphs)
        context.reservation.add(sweep.kept_bytes)
        return SweepRequest(sweep, tokens, fields.stream, pipeline.deadline(context))

    async def answer(self, request: SweepRequest) -> Pieces:
        async for _ in self._rows(request):
            pass
        return [b"{", _start(request), b',"values":', _json(request.sweep.numbers), b"}"]

    async def events(self, request: SweepRequest) -> AsyncGenerator[bytes]:
        numbers = request.sweep.numbers
        async for row in self._rows(request):
            if row is None:
                yield event("start", b"{%b}" % _start(request))
            else:
                yield event("row", b'{"index":%d,"values":%b}' % (row, _json(numbers[row])))
        yield event("done", b'{"values":%b}' % _json(numbers))

    async def _rows(self, request: SweepRequest) -> AsyncGenerator[int | None]:
        """None after the first run, and then each row of the grid's first axis whose numbers are all known."""
        sweep, most = request.sweep, self.pipeline.settings.max_memory_bytes
        tasks = in_order(sweep.first_task(most), sweep.tasks(most), request.deadline)
        await self.engine.run(next(tasks))
        yield None
        rows = sweep.numbers.reshape(len(sweep.numbers), -1) if sweep.numbers.ndim else np.empty((0, 0))
        known = set[int]()
        for task in tasks:
            await self.engine.run(task)
            for row in np.flatnonzero(~np.isnan(rows).any(axis=1)).tolist():
                if row not in known:
                    known.add(row)
                    yield row


def _start(request: SweepRequest) -> bytes:
    """The fields of an answer before its numbers."""
    sweep, metric = request.sweep, request.sweep.metric
    indices: Mapping[str, Any] = sweep.grid.indices()
    fields = {
        "model": sweep.model.name,
        "axes": [*indices],
        **indices,
        "metric": metric.json,
        "unchanged": sweep.unchanged,
    }
    if sweep.grid.place.intervention.source is not None:
        fields["source"] = sweep.source
    tokens = [b",", *request.tokens] if request.tokens else []
    return b"".join([orjson.dumps(fields)[1:-1], *tokens])


def _json(numbers: np.ndarray) -> bytes:
    return orjson.dumps(numbers[()], option=orjson.OPT_SERIALIZE_NUMPY)  # of a grid without axes a number
