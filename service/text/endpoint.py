"""``POST /v1/text/{model}`` runs a model on texts; ``POST /v1/tokenize/{model}`` only tokenizes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson
from starlette.types import Receive, Scope, Send

from service.base.cost import NANOSECOND, CostModel
from service.base.errors import Invalid, Malformed
from service.codec.json_parser import parse_object
from service.codec.json_reader import JsonReader
from service.codec.json_slices import LongList, LongText
from service.codec.long_tensor import read_all
from service.engine.engine import Engine
from service.engine.task import InferenceTask
from service.http.body import Body
from service.http.direct import RequestContext
from service.http.response import JSON, Fields, Pieces, failure, length_of
from service.inference.disconnect import ClientWatch
from service.inference.source import InputSource
from service.inference.stages import Stage, Stages, run_stages
from service.model.graph import Arrays
from service.model.model import Model
from service.native.endpoint import NativeEndpoint
from service.native.request import AttentionRequest, ParsedRequest, parse_fields, read_fields
from service.repository.repository import Repository
from service.settings import Settings
from service.telemetry.counters import NO_MODEL
from service.telemetry.statistics import TOKENIZE
from service.tokens.next_tokens import FIELD as NEXT_TOKENS
from service.tokens.next_tokens import LOGIT_BYTES, LOGITS, TOKEN_BYTES, next_tokens, vocabulary_size
from service.tokens.request import (
    FIELDS,
    TextFields,
    TokenizingNeeds,
    measuring,
    read_texts,
    tensors_of,
    tokenize,
    tokenizer_of,
    tokens_json,
)


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A decoded request with texts: the request with their tokens, and the tokens as JSON fields for the response."""

    attention: AttentionRequest
    tokens: list[bytes]
    fields: TextFields

    @property
    def task(self) -> InferenceTask:
        return self.attention.task

    @property
    def response_bytes(self) -> int:
        """Upper bound in bytes on the response, as arrays and as text, and on the arrays that it is computed from."""
        size, count = self.attention.response_bytes + length_of(self.tokens), self.fields.next_tokens
        if count:
            rows = self.attention.answer_count * self.task.batch
            size += rows * count * TOKEN_BYTES + vocabulary_size(self.task.model) * LOGIT_BYTES
        return size

    @property
    def logit_count(self) -> int:
        """The logits from which next tokens are chosen."""
        return self.task.batch * vocabulary_size(self.task.model) if self.fields.next_tokens else 0


class TextEndpoint(NativeEndpoint[TextRequest]):
    """Runs a model on the texts of the body."""

    def __init__(self, repository: Repository, settings: Settings, engine: Engine, source: InputSource[Any]) -> None:
        super().__init__(repository, settings, engine, source)
        self.tokenizing, self.ranking = CostModel(NANOSECOND), CostModel()

    def model(self, path_params: Mapping[str, Any]) -> Model:
        return self.repository.block(path_params["block"], noun="model")

    def decode(self, model: Model, body: tuple[bytes, Body], context: RequestContext) -> Stages[TextRequest]:
        content, _ = body
        parsed, fields = yield from self.read(content, model)
        token_tensors, tokens = yield from self.tokenize(fields, model, context)
        steps = read_all(parsed.tensors, context.reservation)
        tensors = (yield Stage(self.decoding, len(content), steps)) | token_tensors
        ordered = {name: tensors[name] for name in model.inputs if name in tensors}
        try:
            attention = yield from self.complete(parsed, ordered, model, context)
        except Invalid as error:
            raise _of_text(error, token_tensors) from None
        return TextRequest(attention, tokens, fields)

    def encode(
        self, request: TextRequest, outputs: dict[str, np.ndarray], context: RequestContext
    ) -> Stages[tuple[Pieces, Fields]]:
        ranked = partial(self._ranked, request) if request.fields.next_tokens else None
        return (yield from self.encode_answer(request.attention, outputs, context, request.tokens, ranked))

    def _ranked(self, request: TextRequest, outputs: Arrays) -> Stages[list[bytes]]:
        """The field of the next tokens, which are requested."""
        return [(yield Stage(self.ranking, request.logit_count, partial(_next_tokens, request, outputs)))]

    def encoding_ns(self, request: TextRequest, context: RequestContext) -> float:
        expected_ns = self.encoding_answer_ns(request.attention, context)
        return expected_ns + self.ranking.expected(request.logit_count) if request.fields.next_tokens else expected_ns

    def read(self, content: bytes, model: Model, only_texts: bool = False) -> Stages[tuple[ParsedRequest, TextFields]]:
        """The fields of a request; with ``only_texts`` there may be no others."""
        rest, parts = yield from self.cut(content)
        parsing = partial(self._parse, rest, parts, model, only_texts)
        parsed: tuple[ParsedRequest, TextFields] = yield Stage(self.reading, len(content), parsing)
        return parsed

    def _parse(
        self, content: bytes, parts: Sequence[LongText | LongList], model: Model, only_texts: bool
    ) -> tuple[ParsedRequest, TextFields]:
        tokenizer_of(model)
        json = parse_object(content, parts)
        with np.errstate(over="ignore"):
            reader = JsonReader(parts)
            fields = read_fields(json, reader, model, self.source, (*FIELDS, NEXT_TOKENS))
            for name in fields if only_texts else ():
                if name not in FIELDS:
                    raise Malformed(f"unknown field; /v1/tokenize takes {', '.join(FIELDS)}", name)
            texts = read_texts(reader, fields, model, self.settings.max_text_bytes)
            parsed = parse_fields(fields, reader, model, self.source, (LOGITS,) if texts.next_tokens else ())
            reader.finish(content, strict=False)  # a text may have brackets
            return parsed, texts

    def tokenize(
        self, fields: TextFields, model: Model, context: RequestContext, whole: bool = False
    ) -> Stages[tuple[dict[str, np.ndarray], list[bytes]]]:
        """The tensors of the texts' tokens, and the tokens as JSON fields: with ``whole`` all that is known of them."""

        def tokenized() -> tuple[dict[str, np.ndarray], list[bytes]]:
            tokens = tokenize(fields, model)
            return tensors_of(tokens, fields.is_single, model), tokens_json(tokens, fields.is_single, whole)

        needs: TokenizingNeeds = yield Stage(*measuring([fields], model, self.settings.max_text_bytes))
        context.reservation.add(needs.memory)
        result: tuple[dict[str, np.ndarray], list[bytes]] = yield Stage(self.tokenizing, needs.work, tokenized)
        return result


class TokenizeEndpoint:
    """Tokenizes the texts of the body as the model's tokenizer does; the model is not run."""

    def __init__(self, texts: TextEndpoint) -> None:
        self._texts = texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._texts.respond_with(self._answer, scope, receive, send)

    async def _answer(
        self, path_params: Mapping[str, Any], receive: Receive, context: RequestContext
    ) -> tuple[Pieces, Fields]:
        texts, timing, version = self._texts, context.timing, NO_MODEL
        counts, offload = texts.engine.counts, texts.engine.offload
        client = ClientWatch(receive)
        counts.in_flight += 1
        try:
            model = texts.model(path_params)
            version = model.name, model.version
            content, _ = await texts.receive(receive, context)
            client.start()
            tokenizing = self._tokens(content, model, context)
            tokens = await run_stages(tokenizing, offload, texts.decoding_check(client, context))
            client.check()
            timing.lap("decode")
            pieces: Pieces = [b'{"model":%b,' % orjson.dumps(model.name), *tokens, b"}"]
            response = await run_stages(texts.compress(pieces, JSON, context), offload, client.check)
        except Exception as error:
            counts.observe_failure(version, TOKENIZE, *failure(error, is_v2=False))
            raise
        finally:
            counts.in_flight -= 1
            client.close()
        counts.observe(version, TOKENIZE, timing)
        return response

    def _tokens(self, content: bytes, model: Model, context: RequestContext) -> Stages[list[bytes]]:
        _, fields = yield from self._texts.read(content, model, only_texts=True)
        _, tokens = yield from self._texts.tokenize(fields, model, context, whole=True)
        return tokens


def _of_text(error: Invalid, tensors: Mapping[str, np.ndarray]) -> Invalid:
    """The error with the field of the text in place of one of the ``tensors`` of its tokens."""
    if error.field is None or error.field not in tensors:
        return error
    field = "text_target" if error.field.startswith("decoder_") else "text"
    return Invalid(error.detail.removeprefix(f"{error.field}: "), field)


def _next_tokens(request: TextRequest, outputs: Mapping[str, np.ndarray]) -> bytes:
    """The field ``next_tokens`` of the response."""
    task, fields = request.task, request.fields
    likeliest = next_tokens(outputs[LOGITS], task.inputs, fields.next_tokens, tokenizer_of(task.model))
    return b'"%b":%b' % (NEXT_TOKENS.encode(), orjson.dumps(likeliest[0] if fields.is_single else likeliest))
