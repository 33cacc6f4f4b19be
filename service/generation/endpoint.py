"""``POST /v1/generate/{model}``: tokens, one after the other, and where each looked; at once or as they come."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import orjson

from service.base.cost import NANOSECOND, UNKNOWN, AssumedCost, CostModel
from service.base.errors import Invalid, TooMuchMemory
from service.base.messages import sizes_words
from service.codec.json_slices import LongList, LongText
from service.codec.long_tensor import read_all
from service.generation.counters import GenerationCounters
from service.generation.decoder import FORCED_FIRST, FORCED_LAST, SUPPRESSED_ALWAYS, SUPPRESSED_FIRST, Decoder, listed
from service.generation.generated import Generated
from service.generation.prompts import Prompts, prompts_of
from service.generation.request import DECODER_TEXT, GenerateFields, check_outputs, read
from service.generation.sampling import Sampler
from service.generation.scheduler import MAX_UNREAD, Scheduler
from service.generation.sequence import GrowingSequence, Wanted
from service.http.direct import RequestContext
from service.http.response import Pieces, join
from service.inference.endpoint import PLANNING_NS
from service.inference.source import joined
from service.inference.stages import Stage, Stages, run_stages
from service.interventions.changes import PLACE_BYTES
from service.interventions.lens.steps import open_lens
from service.interventions.request import FIELD
from service.interventions.source import InterventionSource
from service.interventions.steps import SequenceChanges, SharedRuns
from service.interventions.values import WHOLE, Values
from service.model.model import Model
from service.native.endpoint import AttentionEndpoint
from service.native.many_runs import ManyRunsEndpoint, event
from service.native.request import collect
from service.tokens.request import TokenizingNeeds, measuring

AT_ONCE = 16  # prompts of a list that are generated at the same time
MAX_CHANGES = 4096  # interventions of all prompts together; each takes a third of a millisecond to plan
MAX_ITEMS = 1 << 16  # indices and ranges of an option for all prompts together, which may all differ in length
PROMPT_NS, ITEM_NS = 40_000, 350  # to plan a prompt, and an index or range for each of its outputs
ID_NS = 2  # to check a token id that was sent
PIECE_BYTES = 1 << 18  # of an answer: its tokens are joined to pieces of about this size


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A decoded request."""

    model: Model
    fields: GenerateFields
    prompts: Prompts
    decoder: Decoder
    deadline: int | None
    arrival_ns: int
    changes: Sequence[SequenceChanges]  # of each prompt, or none

    @property
    def stream(self) -> bool:
        """Whether it is answered as a stream."""
        return self.fields.stream

    def sequence(self, row: int) -> GrowingSequence:
        """That of the prompt ``row``, whose random numbers are the same alone and in a list."""
        prompt, tokens = self.prompts.rows[row], self.decoder.generation.tokens
        forced = {}
        if len(prompt.ids) == 1 and (first := listed(tokens.get(FORCED_FIRST))):
            forced[0] = first[0]
        if last := listed(tokens.get(FORCED_LAST)):
            forced[prompt.most - 1] = last[0]
        sampler = Sampler(self.fields.sampling, tokens[SUPPRESSED_ALWAYS], tokens[SUPPRESSED_FIRST], forced)
        changes = self.changes[row] if self.changes else None
        return GrowingSequence(
            self.decoder, prompt.ids, prompt.most, prompt.source, sampler, self.fields.wanted, changes
        )

    def memory(self, max_step_bytes: int) -> int:
        """Bytes of its answer, and of the keys and values of as many sequences as are generated at a time.

        Raises:
            TooMuchMemory: a step needs more than ``max_step_bytes``.
            Invalid: the model does not have what an option selects.
        """
        sizes: dict[Any, tuple[int, int]] = {}  # of prompts of the same lengths: keys and values, and the answer
        total = 0
        for row, prompt in enumerate(self.prompts.rows):
            key = len(prompt.ids), prompt.most, *(array.shape for array in prompt.source.values())
            if key not in sizes:
                sequence = self.sequence(row)
                need = sequence.step_memory(sequence.prompt, sequence.end)
                if need > max_step_bytes:
                    got, most = sizes_words(need, max_step_bytes)
                    raise TooMuchMemory(
                        f"a step of this request needs about {got}, which exceeds the maximum allowed, {most} "
                        "(max_memory_bytes); send a shorter prompt, or ask for fewer tokens"
                    )
                sizes[key] = sequence.memory, sequence.answer_bytes
            kept = 1 + MAX_UNREAD if self.fields.stream else prompt.most  # tokens as arrays or JSON
            total += sizes[key][1] * kept
        total += self.changes[0].needs.kept_bytes if self.changes else 0  # the prompts share other runs
        return total + min(AT_ONCE, len(self.prompts.rows)) * max(size for size, _ in sizes.values())

    def generated(self, row: int, counters: GenerationCounters) -> Generated:
        """The tokens behind the prompt ``row``, of which there are none yet."""
        ends = frozenset() if self.fields.ignore_eos else self.decoder.generation.ends
        return Generated(self.sequence(row), ends, self.fields.stops, counters, self.arrival_ns)


class Token(NamedTuple):
    """A generated token: the characters that it adds, and all that is answered of it as JSON."""

    text: str
    json: bytes


class GenerateEndpoint(ManyRunsEndpoint[GenerateRequest]):
    """Generates with a model from the prompts of the body. ``decoders`` has the graphs of each version."""

    api = "generate"

    def __init__(
        self,
        pipeline: AttentionEndpoint,
        decoders: Mapping[Model, Decoder],
        scheduler: Scheduler,
        source: InterventionSource,
    ) -> None:
        super().__init__(pipeline)
        self.source = source
        self._files = pipeline.source.of_tensors
        self._decoders = decoders
        self._scheduler = scheduler
        self._changing, self._writing = AssumedCost(PLANNING_NS), CostModel()
        self._planning, self._tokenizing = CostModel(NANOSECOND), CostModel(NANOSECOND)

    def check(self, model: Model) -> None:
        self._decoder(model)

    def read(
        self, content: bytes, parts: Sequence[LongText | LongList], decoder: Decoder, _path: str
    ) -> GenerateFields:
        """The fields of the JSON ``content``, of which ``parts`` were cut out.

        Raises:
            Malformed, Invalid: a field is wrong.
        """
        limit = self.pipeline.settings.max_text_bytes
        return read(
            content, parts, decoder, limit, self.source, self._files,
            lambda json, reader, known: collect(json, known, reader),
        )  # fmt: skip

    def whole(self, request: GenerateRequest, rows: Sequence[Generated], tokens: Sequence[list[bytes]]) -> Pieces:
        """The whole answer; ``tokens`` has those of each row as a list of JSON, in pieces."""
        single = request.prompts.is_single
        texts, reasons = [row.text for row in rows], [row.finish_reason for row in rows]
        pieces = [b'{"model":%b' % orjson.dumps(request.model.name)]
        if request.prompts.tokens:
            pieces += [b",", *request.prompts.tokens]
        pieces.append(b',"text":%b,"generated":%b' % (orjson.dumps(texts[0] if single else texts), b"[" * (not single)))
        for row, several in enumerate(tokens):
            pieces += [b",", *several] if row else several
        reason = orjson.dumps(reasons[0] if single else reasons)
        pieces.append(b'%b,"finish_reason":%b' % (b"]" * (not single), reason))
        return [*pieces, b',"usage":%b}' % orjson.dumps(usage(rows))]

    def token_event(self, _request: GenerateRequest, token: Token) -> bytes:
        """A token as an event of the stream."""
        return event("token", token.json)

    def last_event(self, request: GenerateRequest, generated: Generated, start_ns: int) -> bytes:
        """The event that ends a stream."""
        done = {
            "text": generated.text,
            "finish_reason": generated.finish_reason,
            "usage": usage([generated]),
            "first_token_ms": (generated.first_ns - start_ns) / 1e6,
            "total_ms": (time.perf_counter_ns() - start_ns) / 1e6,
        }
        prompt = [b",", *request.prompts.tokens] if request.prompts.tokens else []
        return event("done", b"".join([orjson.dumps(done)[:-1], *prompt, b"}"]))

    def _decoder(self, model: Model) -> Decoder:
        decoder = self._decoders.get(model)
        reason = (
            "it was exported without the graphs of steps; export it again"
            if decoder is None
            else decoder.generation.refused
        )
        if decoder is None or reason:
            raise Invalid(f"model '{model.name}' cannot generate: {reason}")
        return decoder

    def decode(self, model: Model, content: bytes, path: str, context: RequestContext) -> Stages[GenerateRequest]:
        decoder, pipeline = self._decoder(model), self.pipeline
        rest, parts = yield from pipeline.cut(content)
        reading = partial(self.read, rest, parts, decoder, path)
        fields: GenerateFields = yield Stage(pipeline.reading, len(content), reading)
        needs: list[TokenizingNeeds] = []
        for texts, name in ((fields.texts, "text"), (fields.decoder_text, DECODER_TEXT)):
            if texts is not None:
                needs.append((yield Stage(*measuring([texts], model, pipeline.settings.max_text_bytes, name))))
        context.reservation.add(sum(one.memory for one in needs))
        if fields.lens_top_k:
            lens = yield from open_lens(self.source, model, fields.lens_top_k, decoder.ids)
            fields = replace(fields, wanted=replace(fields.wanted, lens=lens))
        graphs = decoder.names(bool(fields.wanted.outputs or fields.wanted.lens), bool(fields.interventions))
        if not decoder.are_open(graphs):
            yield Stage(UNKNOWN, 0, partial(decoder.open, graphs))
        check_outputs(fields.wanted.outputs, decoder)
        tensors = yield Stage(pipeline.decoding, len(content), read_all(fields.tensors, context.reservation))
        if fields.files is not None:
            tensors = joined(tensors, (yield from self._files.tensors(fields.files, model, context)))
        work = sum(one.work for one in needs) + ID_NS * sum(tensor.size for tensor in tensors.values())
        prompts: Prompts = yield Stage(self._tokenizing, work, partial(prompts_of, fields, tensors, decoder))
        if fields.stream and not prompts.is_single:
            raise Invalid("requires one prompt, not a list", "stream")
        arrival, most = context.timing.started_ns, pipeline.settings.max_memory_bytes
        request = GenerateRequest(model, fields, prompts, decoder, pipeline.deadline(context), arrival, ())
        planning_ns = _planning_ns(fields.wanted, prompts)
        needed: int = yield Stage(self._planning, planning_ns, partial(request.memory, most))
        context.reservation.add(needed)
        if fields.interventions:
            context.reservation.add(_places_bytes(fields, prompts))
            values: Values = yield from self.source.values(fields.interventions, model, context)
            if values.inputs or values.has_mean:
                yield from self.source.open_graphs(self.source.version(model), (WHOLE,))
            changes = yield Stage(self._changing, 0, partial(changes_of, values, prompts, decoder, most))
            request = replace(request, changes=changes)
            changed: int = yield Stage(self._planning, planning_ns, partial(request.memory, most))
            context.reservation.add(changed - needed)
        return request

    async def answer(self, request: GenerateRequest) -> Pieces:
        """The whole answer, of which AT_ONCE sequences are generated at a time."""
        places = iter(range(len(request.prompts.rows)))
        rows: dict[int, tuple[Generated, list[bytes]]] = {}

        async def generate() -> None:
            for row in places:
                rows[row] = await self._row(request, row)

        try:
            async with asyncio.TaskGroup() as group:  # after an error it ends the others
                for _ in range(min(AT_ONCE, len(request.prompts.rows))):
                    group.create_task(generate())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        found = [rows[row] for row in range(len(rows))]
        return self.whole(request, [generated for generated, _ in found], [pieces for _, pieces in found])

    async def _row(self, request: GenerateRequest, row: int) -> tuple[Generated, list[bytes]]:
        """The list of the tokens behind the prompt ``row``, as JSON in pieces of about ``PIECE_BYTES``."""
        generated, pieces = request.generated(row, self._scheduler.counters), list[bytes]()
        piece, size = [b"["], 0
        async with aclosing(self._tokens(request, generated, row)) as tokens:
            async for token in tokens:
                piece += [b",", token.json] if pieces or len(piece) > 1 else [token.json]
                size += len(token.json)
                if size >= PIECE_BYTES:
                    pieces.append(join([*piece]))
                    piece, size = [], 0
        generated.sequence.release()
        return generated, [*pieces, join([*piece, b"]"])]

    async def events(self, request: GenerateRequest) -> AsyncGenerator[bytes]:
        start, generated = time.perf_counter_ns(), request.generated(0, self._scheduler.counters)
        async with aclosing(self._tokens(request, generated)) as tokens:
            async for token in tokens:
                yield self.token_event(request, token)
        yield self.last_event(request, generated, start)

    async def _tokens(self, request: GenerateRequest, generated: Generated, row: int = 0) -> AsyncGenerator[Token]:
        """Each token behind the prompt ``row``. Only the first prompt of a request waits for its turn in the queue."""
        deadline = None if row else request.deadline
        steps = self._scheduler.steps(generated.sequence, generated.accept, deadline, is_accepted=row > 0)
        async with aclosing(steps) as tokens:
            async for arrays in tokens:
                yield await run_stages(self._token(generated, arrays), self.engine.offload)

    def _token(self, generated: Generated, arrays: Mapping[str, np.ndarray]) -> Stages[Token]:
        text, count, writing = generated.json(arrays)
        pieces: list[bytes] = yield Stage(self._writing, count, writing)
        return Token(text, join([*pieces]))


def _planning_ns(wanted: Wanted, prompts: Prompts) -> int:
    """Nanoseconds to plan the answers, at most.

    Raises:
        Invalid: there are too many indices and ranges in all prompts.
    """
    counts = wanted.selection.item_counts()
    for name, count in counts.items():
        _check_together(count, prompts, MAX_ITEMS, name)
    return len(prompts.rows) * (PROMPT_NS + ITEM_NS * sum(counts.values()) * len(wanted.of_graph))


def _check_together(count: int, prompts: Prompts, most: int, field: str) -> None:
    """Raises Invalid: ``count`` items of ``field`` for each prompt are more than ``most`` together."""
    rows = len(prompts.rows)
    if count * rows > most:
        raise Invalid(f"expected at most {most:,} in all prompts together, got {count:,} in each of {rows:,}", field)


def _places_bytes(fields: GenerateFields, prompts: Prompts) -> int:
    """Bytes of the places that the interventions change, at most.

    Raises:
        Invalid: there are too many of them in all prompts.
    """
    _check_together(len(fields.interventions), prompts, MAX_CHANGES, FIELD)
    positions = sum(len(prompt.ids) + prompt.most for prompt in prompts.rows)
    return PLACE_BYTES * len(fields.interventions) * positions


def changes_of(values: Values, prompts: Prompts, decoder: Decoder, max_bytes: int) -> list[SequenceChanges]:
    """The changes of each prompt.

    Raises:
        Invalid: an index out of range, a token that is not there, or a tensor of another shape.
        TooMuchMemory: another run needs more than ``max_bytes``.
    """
    shared, positions = SharedRuns(), str(decoder.model.inputs[decoder.ids].shape[-1])
    return [
        SequenceChanges(
            values,
            {decoder.ids: prompt.ids[None], **prompt.source},
            positions,
            len(prompt.ids) + prompt.most,
            shared,
            max_bytes,
        )
        for prompt in prompts.rows
    ]


def usage(rows: Sequence[Generated]) -> dict[str, int]:
    """Numbers of tokens, of all rows together."""
    prompt = sum(row.sequence.prompt for row in rows)
    new = sum(row.sequence.length - row.sequence.prompt for row in rows)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
