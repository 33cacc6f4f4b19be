"""Triton's generate extension of V2: ``POST /v2/models/{model}/generate`` and ``/generate_stream``.

It has a text in and a text out. The names of TensorRT-LLM's and vLLM's backends are taken for parameters beside those
of ``/v1/generate``, and the fields of ``parameters`` also beside it, as clients of both send them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from service.base.errors import HeedError, Invalid, Malformed
from service.codec.json_parser import JsonArray, JsonObject
from service.codec.json_reader import JsonReader, describe
from service.codec.json_slices import LongList, LongText
from service.generation.decoder import Decoder
from service.generation.endpoint import GenerateEndpoint, GenerateRequest, Token, usage
from service.generation.generated import Generated
from service.generation.request import CHANGES, ID, MAX_NEW, GenerateFields, read
from service.http.response import Pieces
from service.inference.source import InputSource
from service.model.model import Model
from service.native.request import collect

GENERATE, STREAM = "generate", "generate_stream"
TEXT, PARAMETERS = "text_input", "parameters"
ALIASES = {"max_tokens": MAX_NEW, "stop_words": "stop", "random_seed": "seed"}
NAMES = {"text": TEXT}  # of fields in errors
HIDDEN = ("text", "text_pair", "input_ids", "stream", *CHANGES)  # fields of /v1/generate that this API does not have
NEUTRAL = {"beam_width": 1, "bad_words": [], "exclude_input_in_output": True}  # accepted with no other value
MAX_ID_CHARACTERS = 4096  # as in V2's inference
EMPTY = ("", None)  # members of lists of words that clients send for none


class TritonEndpoint(GenerateEndpoint):
    """Continues one text. A path that ends in ``generate_stream`` answers events without names."""

    api = "v2"
    is_v2 = True

    def model(self, path_params: Mapping[str, Any]) -> Model:
        return self.pipeline.repository.model(path_params["model"], path_params.get("version"))

    def read(self, content: bytes, parts: Sequence[LongText | LongList], decoder: Decoder, path: str) -> GenerateFields:
        def fields_of(json: JsonObject, reader: JsonReader, known: Sequence[str]) -> dict[str, Any]:
            return _fields(json, reader, known, path.endswith(STREAM))

        limit = self.pipeline.settings.max_text_bytes
        return read(content, parts, decoder, limit, self.source, InputSource(), fields_of)

    def named(self, error: HeedError) -> HeedError:
        if error.field not in NAMES:
            return error
        return type(error)(error.detail.removeprefix(f"{error.field}: "), NAMES[error.field])

    def whole(self, request: GenerateRequest, rows: Sequence[Generated], tokens: Sequence[list[bytes]]) -> Pieces:
        row = rows[0]
        about = _about(request) | {"text_output": row.text, "finish_reason": row.finish_reason, "usage": usage(rows)}
        return [_with(about, b"generated", b"".join(tokens[0]) if _has_more(request) else None)]

    def token_event(self, request: GenerateRequest, token: Token) -> bytes:
        about = _about(request) | {"text_output": token.text}
        return b"data: %b\n\n" % _with(about, b"token", token.json if _has_more(request) else None)

    def last_event(self, request: GenerateRequest, generated: Generated, _start_ns: int) -> bytes:
        ended = {"text_output": "", "finish_reason": generated.finish_reason, "usage": usage([generated])}
        return b"data: %b\n\n" % orjson.dumps(_about(request) | ended)

    def error_event(self, problem: bytes) -> bytes:
        return b"data: %b\n\n" % problem


def _fields(json: JsonObject, reader: JsonReader, known: Sequence[str], stream: bool) -> dict[str, Any]:
    """The fields as those of ``/v1/generate``.

    Raises:
        Malformed: a field that is unknown or given twice, or no text.
        Invalid: ``parameters`` is no object, or a parameter has a value that is not supported.
    """
    names = [name for name in known if name not in HIDDEN] + [*ALIASES, *NEUTRAL, "stream"]
    if "text" in json:  # without a field, which ``named`` would rename
        raise Malformed(f"text: unknown field; did you mean '{TEXT}'?")
    fields = collect(json, [TEXT, PARAMETERS, ID, *names], reader)
    given_id = fields.get(ID)
    if not isinstance(given_id, str | LongText | None):
        raise Invalid(f"expected text, got {describe(given_id)}", ID)
    if isinstance(given_id, LongText) or len(given_id or "") > MAX_ID_CHARACTERS:
        raise Invalid(f"expected at most {MAX_ID_CHARACTERS:,} characters", ID)
    text, parameters = fields.pop(TEXT, None), fields.pop(PARAMETERS, None)
    if text is None:
        raise Malformed("missing (required)", TEXT)
    if not isinstance(text, str | LongText):
        raise Invalid(f"expected text, got {describe(text)}", TEXT)
    if parameters is not None:
        if not isinstance(parameters, JsonObject):
            raise Invalid(f"expected an object, got {describe(parameters)}", PARAMETERS)
        for name, value in collect(parameters, names, reader).items():
            if name in fields:
                raise Malformed("given twice", name)
            fields[name] = value
    for name, value in NEUTRAL.items():
        given = _words(reader, fields.pop(name, None))
        if given not in (None, value):
            raise Invalid(f"expected {value}, got {describe(given)}: nothing else is supported", name)
    if fields.pop("stream", None) not in (None, stream):
        raise Invalid(f"expected {str(stream).lower()}: the path ends in {STREAM if stream else GENERATE}", "stream")
    for alias, name in ALIASES.items():
        value = fields.pop(alias, None)
        if value is not None:
            if name in fields:
                raise Malformed(f"given twice, also as {alias}", name)
            fields[name] = value
    if _words(reader, fields.get("stop")) == []:
        del fields["stop"]
    return fields | {"text": text, "stream": stream}


def _words(reader: JsonReader, value: Any) -> Any:
    """``value``, or a list without its empty members if it is one."""
    words = [reader.part(item) for item in value] if isinstance(value, JsonArray) else value
    return [word for word in words if word not in EMPTY] if isinstance(words, list) else words


def _has_more(request: GenerateRequest) -> bool:
    """Whether more than its text is answered of a token."""
    return bool(request.fields.wanted.outputs or request.fields.wanted.alternatives)


def _about(request: GenerateRequest) -> dict[str, Any]:
    given = {} if request.fields.id is None else {"id": request.fields.id}
    return given | {"model_name": request.model.name, "model_version": str(request.model.version)}


def _with(about: Mapping[str, Any], name: bytes, json: bytes | None) -> bytes:
    """The JSON of ``about``, and a further field if it has ``json``."""
    whole = orjson.dumps(about)
    return whole if json is None else b'%b,"%b":%b}' % (whole[:-1], name, json)
