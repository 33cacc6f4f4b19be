"""The fields of a request to generate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from service.base.errors import Invalid, Malformed
from service.codec.json_parser import JsonArray, JsonObject, parse_object
from service.codec.json_reader import JsonReader, describe
from service.codec.json_slices import LongList, LongText
from service.codec.long_tensor import LongTensor
from service.generation.decoder import Decoder
from service.generation.sampling import NUMBERS, Number, Sampling, read_sampling
from service.generation.sequence import LOGPROBS, Wanted
from service.inference.source import InputSource
from service.interventions.lens.request import TOP_K, read_top_k
from service.interventions.request import FIELD as INTERVENTIONS
from service.interventions.request import Intervention
from service.interventions.source import InterventionSource
from service.model.model import Model
from service.selection.derived import derived_outputs
from service.selection.indices import MAX_ITEMS
from service.selection.options import OPTIONS, read_selection
from service.tokens.next_tokens import read_count
from service.tokens.request import DECODER, TextFields, decoded, read_flag, read_texts, tokenizer_of

TEXTS = ("text", "text_pair", "truncation", "add_special_tokens")
DECODER_TEXT, DECODER_IDS = "decoder_text", "decoder_input_ids"
MAX_NEW = "max_new_tokens"
DEFAULT_NEW = 20
MAX_STOPS, MAX_STOP_CHARACTERS = 16, 256
ID = "id"  # of a request to V2
FLAGS = ("ignore_eos", "stream")
CHANGES = (INTERVENTIONS, TOP_K)
FIELDS = (
    *TEXTS, "input_ids", DECODER_TEXT, DECODER_IDS, MAX_NEW, *NUMBERS, "stop", *FLAGS, "outputs", "next_tokens",
    *CHANGES, *OPTIONS,
)  # fmt: skip
SOURCES = ("input_features", "input_values", "pixel_values")  # of an encoder that takes no token ids


@dataclass(frozen=True, slots=True)
class GenerateFields:
    """A request as it was sent: its texts and tensors are still to be made prompts of."""

    texts: TextFields | None
    tensors: Mapping[str, np.ndarray | LongTensor]
    decoder_text: TextFields | None
    most: int | None  # new tokens
    sampling: Sampling
    stops: Sequence[str | int]
    ignore_eos: bool
    stream: bool
    wanted: Wanted = field(default_factory=Wanted)
    interventions: Sequence[Intervention] = ()
    lens_top_k: int = 0
    files: Any = None  # a reference to those of which an input is made
    id: str | None = None  # that the answer repeats


def read(
    content: bytes,
    parts: Sequence[LongText | LongList],
    decoder: Decoder,
    max_text_bytes: int,
    source: InterventionSource,
    files: InputSource[Any],
    fields_of: Callable[[JsonObject, JsonReader, Sequence[str]], dict[str, Any]],
) -> GenerateFields:
    """The fields of the JSON ``content``, of which ``parts`` were cut out. ``fields_of`` finds those that are known,
    and ``files`` those of files.

    ``check_outputs`` is still to be called.

    Raises:
        Malformed: not JSON, or an unknown field.
        Invalid: a field of another type, out of range, or that excludes another; ``field`` names it.
    """
    json, reader, model = parse_object(content, parts), JsonReader(parts), decoder.model
    beside = inputs_beside_ids(model)
    of_files = [*files.fields_for(model)] if beside else []
    fields = fields_of(json, reader, (*FIELDS, *beside, *of_files))
    given = {name: value for name, value in fields.items() if value is not None}
    takes_ids = "input_ids" in model.inputs
    instead = [] if takes_ids else [*beside, *of_files]  # of a text
    _exclude(given, ("text", "input_ids", *instead))
    if not takes_ids:
        _require_source(given, model, instead)
    _exclude(given, (DECODER_TEXT, DECODER_IDS))
    two_stacks = decoder.generation.two_stacks
    for name in (DECODER_TEXT, DECODER_IDS):
        if name in given and not two_stacks:
            raise Invalid(f"not accepted: model '{model.name}' has one stack; its prompt is text or input_ids", name)
    texts = None
    if not given.keys() & {"input_ids", *instead}:
        texts = read_texts(reader, {name: given[name] for name in TEXTS if name in given}, model, max_text_bytes)
    tensors = {
        name: reader.tensor(model.inputs[name], given[name])
        for name in ("input_ids", DECODER_IDS, *beside)
        if name in given
    }
    most = given.get(MAX_NEW)
    if most is not None:
        Number(1, whole=True).read(MAX_NEW, most)
    flags = {name: bool(read_flag(given, name)) for name in FLAGS}
    options = {name: reader.items(name, given[name], MAX_ITEMS) for name in OPTIONS if name in given}
    outputs = reader.texts("outputs", given["outputs"]) if "outputs" in given else ()
    wanted = Wanted(outputs, read_selection(options), read_count(given.get("next_tokens"), model))
    decoder_text = given.get(DECODER_TEXT)
    if decoder_text is not None:
        if not isinstance(decoder_text, str | LongText):
            raise Invalid(f"expected text, got {describe(decoder_text)}", DECODER_TEXT)
        tokenizer_of(model, DECODER_TEXT)
        text = decoded(decoder_text, DECODER_TEXT, max_text_bytes)
        decoder_text = TextFields({DECODER: [text]}, is_single=True, truncation=False, special_tokens=False)
    return GenerateFields(
        texts,
        tensors,
        decoder_text,
        most,
        read_sampling(given),
        _stops(given, reader),
        **flags,
        wanted=wanted,
        interventions=source.read_for_steps(given[INTERVENTIONS], model, reader) if INTERVENTIONS in given else (),
        lens_top_k=read_top_k(given[TOP_K], model) if TOP_K in given else 0,
        files=files.read({name: given[name] for name in of_files if name in given}, model, reader),
        id=given.get(ID),
    )


def inputs_beside_ids(model: Model) -> list[str]:
    """The inputs that a prompt may have beside token ids, or in place of them."""
    sources = SOURCES if "input_ids" not in model.inputs else ()
    return [name for name in model.inputs if name in sources or name in model.signature.placeholders]


def check_outputs(names: Sequence[str], decoder: Decoder) -> None:
    """Check the names of outputs; where there are any, the graph that has them must be open.

    Raises:
        Malformed: one is unknown.
        Invalid: one is given twice.
    """
    if not names:
        return
    known = [
        *decoder.signature.outputs,
        *(name for name in derived_outputs(decoder.signature) if name != "rollout"),
        LOGPROBS,
    ]
    for name in names:
        if name not in known:
            raise Malformed(f"unknown output {name!r}; available: {', '.join(known)}", "outputs")
    if len(set(names)) != len(names):
        raise Invalid(f"expected outputs without duplicates, got {names}", "outputs")


def _exclude(fields: Mapping[str, Any], names: Sequence[str]) -> None:
    first, *others = [name for name in names if name in fields] or [""]
    if others:
        raise Malformed(f"cannot be given together with {first}", others[0])


def _require_source(fields: Mapping[str, Any], model: Model, instead: Sequence[str]) -> None:
    """Check that a model without token ids gets one of the fields ``instead``."""
    for name in ("text", "input_ids"):
        if name in fields:
            raise Invalid(f"not accepted: model '{model.name}' generates from {' or '.join(instead)}", name)
    if fields.keys().isdisjoint(instead):
        raise Invalid(f"missing: expected {' or '.join(instead)}", instead[0])


def _stops(fields: Mapping[str, Any], reader: JsonReader) -> list[str | int]:
    """The texts and token ids that end a sequence."""
    element = fields.get("stop")
    if element is None:
        return []
    stops = [reader.part(item) for item in element] if isinstance(element, JsonArray) else [element]
    if len(stops) > MAX_STOPS:
        raise Invalid(f"expected at most {MAX_STOPS} texts or token ids, got {len(stops)}", "stop")
    for stop in stops:
        is_text = isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_CHARACTERS
        if not is_text and not (type(stop) is int and stop >= 0):
            raise Invalid(
                f"expected texts of 1 to {MAX_STOP_CHARACTERS} characters, or token ids, got {describe(stop)}", "stop"
            )
    return stops
