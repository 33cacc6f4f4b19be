"""``POST /v1/generate/{model}``: tokens, one after the other, and where each looked; at once or as they come."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from service.base.budget import Reservation
from service.base.cost import CostModel
from service.base.errors import Invalid, Overloaded, TooMuchMemory
from service.base.messages import sizes_words
from service.codec.json_writer import PLACEHOLDER, write_json
from service.codec.long_tensor import read_all
from service.engine.task import InferenceTask
from service.generation.decoder import Decoder, listed
from service.generation.prompts import Prompt, Prompts, prompts_of
from service.generation.request import GenerateFields, read
from service.generation.sampling import Sampler
from service.generation.sequence import (
    IDS,
    LOGPROB,
    PROBABILITIES,
    TOKEN,
    GrowingSequence,
)
from service.http.body import CountedReceive
from service.http.direct import RequestContext
from service.http.response import JSON, Pieces, error_response, failure, join, respond
from service.inference.stages import Stage, Stages, run_stages
from service.model.model import Model
from service.native.endpoint import AttentionEndpoint
from service.native.request import answered_fields
from service.selection.answer import answered_names
from service.telemetry.counters import NO_MODEL

API = "generate"  # in metrics
EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
RETRY_S = 0.02  # after which a step is queued again where the queue was full


@dataclass(slots=True)
class Generated:
    """The tokens of one prompt so far."""

    sequence: GrowingSequence
    text: str = ""
    finish_reason: str = "length"
    first_ns: int = 0  # until the first token


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A decoded request."""

    model: Model
    fields: GenerateFields
    prompts: Prompts
    decoder: Decoder
    deadline: int | None

    def sequence(self, row: int) -> GrowingSequence:
        """That of the prompt ``row``, whose random numbers are the same alone and in a list."""
        prompt, tokens = self.prompts.rows[row], self.decoder.generation.tokens
        last = {prompt.most - 1: tokens["forced_eos_token_id"]} if tokens.get("forced_eos_token_id") else {}
        first = {0: tokens["forced_bos_token_id"]} if _is_start(prompt, tokens) else {}
        sampler = Sampler(
            self.fields.sampling,
            listed(tokens.get("suppress_tokens")),
            listed(tokens.get("begin_suppress_tokens")),
            {place: listed(forced)[0] for place, forced in (first | last).items()},
        )
        return GrowingSequence(self.decoder, prompt.ids, prompt.most, prompt.source, sampler, self.fields.wanted)


class GenerateEndpoint:
    """Generates with a model from the prompts of the body.

    ``pipeline`` receives and cuts bodies; ``decoders`` has the graphs of each version.
    """

    def __init__(self, pipeline: AttentionEndpoint, decoders: Mapping[Model, Decoder]) -> None:
        self._pipeline = pipeline
        self._decoders = decoders
        self._engine = pipeline.engine
        self._tokenizing, self._writing = CostModel(), CostModel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state, counts = scope["state"], self._engine.counts
        reservation = Reservation(self._engine.budget)
        version = NO_MODEL
        context = RequestContext(state["headers"], state["timing"], reservation)
        timing = context.timing
        counts.in_flight += 1
        try:
            model = self._pipeline.model(scope["path_params"])
            version = model.name, model.version
            decoder = self._decoder(model)
            self._engine.check_queue()
            counted = CountedReceive(receive, reservation)
            content, _ = await self._pipeline.receive(counted, context)
            request = await run_stages(self._decode(content, decoder, context), self._engine.offload)
            sequences = [request.sequence(row) for row in range(len(request.prompts.rows))]
            for sequence in sequences:
                self._check_step(sequence)
                kept = 1 if request.fields.stream else sequence.most  # tokens as JSON
                reservation.add(sequence.memory + kept * sequence.answer_bytes)
            timing.lap("decode")
            if request.fields.stream:
                await self._unless_disconnected(self._stream(request, sequences[0], scope, send), counted)
            else:
                answer = self._answer(request, sequences)
                pieces = await self._unless_disconnected(answer, counted)
                await respond(send, pieces, JSON)
            timing.lap("compute")
        except Exception as error:
            counts.observe_failure(version, API, *failure(error, is_v2=False))
            raise
        finally:
            counts.in_flight -= 1
            reservation.release()
        counts.observe(version, API, timing)

    def _check_step(self, sequence: GrowingSequence) -> None:
        """Raises TooMuchMemory where a step needs more than ``max_memory_bytes``."""
        need = sequence.step_memory(sequence.prompt, sequence.prompt + sequence.most)
        if need > (limit := self._pipeline.settings.max_memory_bytes):
            got, most = sizes_words(need, limit)
            raise TooMuchMemory(
                f"a step of this request needs about {got}, which exceeds the maximum allowed, {most} "
                "(max_memory_bytes); send a shorter prompt, or ask for fewer tokens"
            )

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

    def _decode(self, content: bytes, decoder: Decoder, context: RequestContext) -> Stages[GenerateRequest]:
        model, pipeline = decoder.model, self._pipeline
        rest, parts = yield from pipeline.cut(content)
        reading = partial(read, rest, parts, model, decoder, pipeline.settings.max_text_bytes)
        fields: GenerateFields = yield Stage(pipeline.reading, len(content), reading)
        if fields.texts is not None:
            context.reservation.add(fields.texts.memory(model))
        tensors = yield Stage(pipeline.decoding, len(content), read_all(fields.tensors, context.reservation))
        size = fields.texts.size if fields.texts else 0
        prompts: Prompts = yield Stage(self._tokenizing, size, partial(prompts_of, fields, tensors, decoder))
        if fields.stream and not prompts.is_single:
            raise Invalid("requires one prompt, not a list", "stream")
        return GenerateRequest(model, fields, prompts, decoder, pipeline.deadline(context))

    async def _answer(self, request: GenerateRequest, sequences: list[GrowingSequence]) -> Pieces:
        rows = await asyncio.gather(*(self._row(request, sequence) for sequence in sequences))
        texts, tokens, reasons = (
            [getattr(row, name) for row, _ in rows] if name else [pieces for _, pieces in rows]
            for name in ("text", "", "finish_reason")
        )
        lists = [b"[%b]" % b",".join(of) for of in tokens]
        single = request.prompts.is_single
        fields = {
            b"text": orjson.dumps(texts[0] if single else texts),
            b"generated": lists[0] if single else b"[%b]" % b",".join(lists),
            b"finish_reason": orjson.dumps(reasons[0] if single else reasons),
            b"usage": orjson.dumps(_usage(sequences)),
        }
        model = b'{"model":%b' % orjson.dumps(request.model.name)
        own = b",".join(b'"%b":%b' % item for item in fields.items())
        return [join([model, *([b",", *request.prompts.tokens] if request.prompts.tokens else []), b",", own, b"}"])]

    async def _row(self, request: GenerateRequest, sequence: GrowingSequence) -> tuple[Generated, list[bytes]]:
        generated = Generated(sequence)
        return generated, [token async for token in self._tokens(request, generated)]

    async def _stream(self, request: GenerateRequest, sequence: GrowingSequence, scope: Scope, send: Send) -> None:
        """An event for each token; then ``done``, or ``error`` with a problem."""
        start, generated = time.perf_counter_ns(), Generated(sequence)
        tokens = self._tokens(request, generated)
        first = await anext(tokens)  # an error before it is an ordinary answer
        await send({"type": "http.response.start", "status": 200, "headers": [*EVENTS]})
        await send(_event(b"token", first))
        try:
            async for token in tokens:
                await send(_event(b"token", token))
            now = time.perf_counter_ns()
            done = {
                "text": generated.text, "finish_reason": generated.finish_reason, "usage": _usage([sequence]),
                "first_token_ms": (generated.first_ns - start) / 1e6, "total_ms": (now - start) / 1e6,
            }  # fmt: skip
            last = _event(b"done", orjson.dumps(done))
        except Exception as error:
            last = _event(b"error", bytes(error_response(scope["path"], error).body))
        await send(last | {"more_body": False})

    async def _tokens(self, request: GenerateRequest, generated: Generated) -> AsyncIterator[bytes]:
        """The JSON of one token after the other."""
        fields, sequence, model = request.fields, generated.sequence, request.model
        ends = frozenset() if fields.ignore_eos else request.decoder.generation.ends
        stop_ids = {stop for stop in fields.stops if isinstance(stop, int)}
        stop_texts = [stop for stop in fields.stops if isinstance(stop, str)]
        piece_of = model.tokenizer.text_of_tokens() if model.tokenizer else lambda _: ""
        for place in range(sequence.most):
            arrays = await self._run(partial(sequence.task, None if place else request.deadline), place == 0)
            token = int(arrays[TOKEN])
            generated.first_ns = generated.first_ns or time.perf_counter_ns()
            start = len(generated.text)
            generated.text += piece_of(token)
            found = [at for stop in stop_texts if (at := generated.text.find(stop)) >= 0]
            generated.text = generated.text[: min(found)] if found else generated.text
            if token in ends:
                generated.finish_reason = "eos"
            elif found or token in stop_ids:
                generated.finish_reason = "stop"
            offset = min(start, len(generated.text)), len(generated.text)
            yield await run_stages(self._json(request, arrays, generated.text, offset), self._engine.offload)
            if generated.finish_reason != "length":
                return

    def _json(
        self, request: GenerateRequest, arrays: Mapping[str, np.ndarray], text: str, offset: tuple[int, int]
    ) -> Stages[bytes]:
        wanted, tokenizer = request.fields.wanted, request.model.tokenizer
        token = int(arrays[TOKEN])
        about: dict[str, Any] = {
            "id": token, "token": tokenizer.token(token) if tokenizer else None, "text": text[slice(*offset)],
            "offset": offset, "logprob": float(arrays[LOGPROB]),
        }  # fmt: skip
        if wanted.alternatives:
            about["next_tokens"] = [
                {"id": index, "token": tokenizer.token(index) if tokenizer else None, "probability": p}
                for index, p in zip(arrays[IDS].tolist(), arrays[PROBABILITIES].tolist(), strict=True)
            ]
        names = [name for output in wanted.outputs for name in answered_names(output, wanted.selection)]
        lists = [arrays[name] for name in names]
        frame = b",".join([orjson.dumps(about)[:-1], *answered_fields(wanted.outputs, wanted.selection)]) + b"}"
        count = sum(array.size for array in lists)
        steps = write_json(frame.split(PLACEHOLDER), lists, wanted.selection.decimals)
        pieces: list[bytes] = yield Stage(self._writing, count, steps)
        return join([*pieces])

    async def _run(self, task: "partial[InferenceTask]", is_first: bool) -> dict[str, np.ndarray]:
        """The arrays of a step; a later one waits while the queue is full, as its request was accepted."""
        while True:
            try:
                return await self._engine.run(task())
            except Overloaded:
                if is_first:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _unless_disconnected(self, work: Awaitable[Any], receive: Receive) -> Any:
        """The result of ``work``, which is cancelled if the client disconnects.

        Raises:
            ClientDisconnect: it did.
        """
        working = asyncio.ensure_future(work)
        watching = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise ClientDisconnect
        finally:
            for task in (working, watching):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _is_start(prompt: Prompt, tokens: Mapping[str, Any]) -> bool:
    """Whether a token is forced behind the prompt, which is the decoder's start token alone."""
    return tokens.get("forced_bos_token_id") is not None and len(prompt.ids) == 1


def _event(name: bytes, data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"event: %b\ndata: %b\n\n" % (name, data), "more_body": True}


def _usage(sequences: list[GrowingSequence]) -> dict[str, int]:
    prompt = sum(sequence.prompt for sequence in sequences)
    new = sum(sequence.length - sequence.prompt for sequence in sequences)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
