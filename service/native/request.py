"""Decoding of a native request: JSON to the arrays of a run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import orjson

from service.base.aliases import ALIASES, canonical_names, field_hint, is_no_op, name_hint
from service.base.budget import Reservation
from service.base.cache import BoundedCache
from service.base.errors import Invalid, Malformed
from service.base.steps import Steps
from service.codec.json_parser import JsonArray, JsonObject, parse_object
from service.codec.json_reader import MAX_NAMES, JsonReader
from service.codec.json_slices import LongList, LongText
from service.codec.json_writer import PLACEHOLDER
from service.codec.long_tensor import LongTensor, read_all
from service.engine.task import InferenceTask
from service.http.body import Body
from service.http.response import TEXT_BYTES
from service.inference.plan import RunPlan, plan_run
from service.inference.source import InputSource, SourceInputs
from service.model.checks import OutOfRange, check_values
from service.model.estimate import number_count
from service.model.masks import ADDITIVE_MASK, check_masks
from service.model.model import Model
from service.native.leading_axes import LeadingAxes
from service.selection.answer import AnsweredOutput, answered_names, graph_outputs
from service.selection.derived import derived_outputs
from service.selection.indices import MAX_ITEMS
from service.selection.options import AXES, FLAG, NO_SELECTION, OPTIONS, Selection, index_input, read_selection
from service.tensors.dims import WrongSize
from service.tensors.spec import TensorSpec

DEFAULT_OUTPUTS = ("output", "weights")
ITEM_BYTES = 4  # of a number in an answer
TEXTS = ("text", "next_tokens")  # fields of requests with texts
CHOICES = ("outputs", *OPTIONS)  # fields that are no inputs


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The plan of a request's run, and how its response is written."""

    run: RunPlan
    shapes: dict[str, list[int]]  # of the inputs, as the graph takes them
    omitted: dict[str, tuple[int, ...]]  # the axes that the request omits, of each array of the response
    output_count: int  # numbers in the response
    frame: list[bytes]  # the JSON of a response around its arrays
    decimals: int | None = None  # of its numbers as text; None = exact


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """A decoded request: its run, and how its outputs are sent."""

    task: InferenceTask
    plan: AttentionPlan
    stored: SourceInputs | None

    @property
    def answer_count(self) -> int:
        """How many sets of outputs the response has."""
        return self.stored.answer_count if self.stored else 1

    @property
    def response_bytes(self) -> int:
        """Upper bound in bytes on the response, as arrays and as text, and on what it is computed with."""
        answer = self.plan.run.answer
        size = (ITEM_BYTES + TEXT_BYTES) * self.plan.output_count + (answer.memory if answer else 0)
        return self.answer_count * size


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """The fields of a request's JSON; long tensors are still to be read."""

    tensors: dict[str, np.ndarray | LongTensor]
    outputs: list[str]
    selection: Selection
    additive_mask: bool
    computed: tuple[str, ...]  # outputs of the graph that are computed, too, and not answered
    reference: Any  # to the source of other inputs


def read(
    body: Body,
    parts: Sequence[LongText | LongList],
    model: Model,
    source: InputSource[Any],
    reservation: Reservation,
) -> Steps[tuple[ParsedRequest, dict[str, np.ndarray]]]:
    """The fields of ``body``, of which ``parts`` were cut out, and its tensors, which are added to ``reservation``.

    Raises:
        Malformed: not JSON, or a field the block does not have.
        Invalid: a tensor or option that is wrong; ``field`` names it.
        TooMuchMemory, Overloaded: there is no room for its tensors.
    """
    json = parse_object(body, parts)
    with np.errstate(over="ignore"):
        reader = JsonReader(parts)
        parsed = parse_fields(read_fields(json, reader, model, source), reader, model, source)
        reader.finish(body)
    if parsed.reference is None and any(isinstance(tensor, LongTensor) for tensor in parsed.tensors.values()):
        check_complete(parsed.outputs, parsed.computed, parsed.tensors, model)
    return parsed, (yield from read_all(parsed.tensors, reservation))


def complete(
    parsed: ParsedRequest,
    tensors: dict[str, np.ndarray],
    model: Model,
    cache: BoundedCache[AttentionPlan],
    max_memory_bytes: int,
    stored: SourceInputs | None,
) -> AttentionRequest:
    """The request with these ``tensors``, in the order of the model's inputs, and those ``stored`` in a source.

    Raises:
        Invalid: a tensor or option that is wrong; ``field`` names it.
        TooMuchMemory: it would need more than ``max_memory_bytes`` bytes.
    """
    if not parsed.additive_mask:
        check_masks(model, tensors)
    plan = _plan(tensors, parsed, model, cache, max_memory_bytes, stored)
    estimate = plan.run.estimate
    inputs = {name: array.reshape(plan.shapes[name]) for name, array in tensors.items()}
    if stored is not None:
        inputs = stored.add_to(inputs)
    task = InferenceTask(model, estimate, inputs, plan.run.graph_outputs, estimate.sizes.get("batch", 1), stored=stored)
    return AttentionRequest(task, plan, stored)


def check_complete(outputs: Sequence[str], computed: Sequence[str], given: Collection[str], model: Model) -> None:
    """Raises Invalid: an input that ``outputs``, or those ``computed``, require is not among ``given``."""
    answered = graph_outputs(outputs, model.signature)
    for name in model.signature.missing(given, (*answered, *computed)):
        needing = [output for output in answered if output in model.signature.omissible.get(name, ())]
        raise Invalid(f"missing (required{f' for {needing[0]}' if needing else ''})", name)


def collect(json: JsonObject, known: Sequence[str], reader: JsonReader) -> dict[str, Any]:
    """The fields of ``json``, all of which are ``known``.

    Raises:
        Malformed: a field that is unknown, or given twice.
    """
    fields: dict[str, Any] = {}
    for name in json:
        if name in fields:
            raise Malformed("given twice", name)
        if name not in known:
            hint = field_hint(name, known) or f"; expected {', '.join(known)}"
            raise Malformed(f"unknown field{hint}", name)
        fields[name] = json[name]
    return reader.resolved(fields)


def read_fields(
    json: JsonObject, reader: JsonReader, model: Model, source: InputSource[Any], others: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of a request: the model's inputs, ``CHOICES``, those of ``source``, and ``others``.

    Raises:
        Malformed: another field, or one that is given twice.
    """
    assert model.spec is not None
    choices = (*others, *CHOICES, *source.fields_for(model), *([ADDITIVE_MASK] if model.masks else ()))
    fields, names = {}, set()
    for name in json:
        if name in names:
            raise Malformed("given twice", name)
        names.add(name)
        if name in model.inputs or name in choices:
            fields[name] = json[name]
        else:
            _check_unknown(name, json, model, (*model.inputs, *choices))
    return reader.resolved(fields)


def _check_unknown(name: str, json: JsonObject, model: Model, fields: Collection[str]) -> None:
    """Check that a field which is none of ``fields`` is a known alias whose value is a no-op.

    Raises:
        Malformed: it does not.
    """
    assert model.spec is not None
    outputs = json.get("outputs")
    asks_for_weights = outputs is None or (isinstance(outputs, JsonArray) and "weights" in islice(outputs, MAX_NAMES))
    conditions = {"groups_heads": bool(model.spec.multiples), "answers_weights": asks_for_weights}
    if name in ALIASES and is_no_op(name, json[name], conditions):  # simdjson finds no name with a NUL
        return
    required = ", ".join(input_name for input_name, tensor in model.inputs.items() if tensor.required)
    if _is_v2(json):
        raise Malformed(
            f"this is a body of the Open Inference Protocol: POST it to /v2/models/{model.name}/infer, or send tensors "
            f"as fields here: {required}",
            name,
        )
    if "text" not in fields and (name in TEXTS or "text" in canonical_names(name)[:1]):
        hint = f"; {model.name} has no tokenizer; it takes tensors: {required}"
        if model.tokenizer:
            hint = f"; POST /v1/text/{model.name} takes texts"
    elif name in model.outputs:
        hint = f'; it is an output: request it in "outputs": ["{name}"]'
    else:
        hint = field_hint(name, fields)
    raise Malformed(f"unknown field{hint or f'; {model.name} takes ' + ', '.join(fields)}", name)


def _is_v2(json: JsonObject) -> bool:
    """Whether a request lists its tensors, as in the Open Inference Protocol."""
    inputs = json.get("inputs")
    first: Any = inputs[0] if isinstance(inputs, JsonArray) and len(inputs) else None
    return isinstance(first, JsonObject)


def parse_fields(
    fields: Mapping[str, Any],
    reader: JsonReader,
    model: Model,
    source: InputSource[Any],
    computed: tuple[str, ...] = (),
) -> ParsedRequest:
    """The tensors and options in ``fields``; with outputs that are ``computed``, none need be answered.

    Raises:
        Malformed, Invalid: as ``read``.
    """
    spec = model.spec
    assert spec is not None
    options = {
        name: reader.items(name, value, MAX_ITEMS)
        for name, value in fields.items()
        if name in OPTIONS and name not in model.inputs
    }
    selection = read_selection(options) if options else NO_SELECTION
    tensors: dict[str, np.ndarray | LongTensor] = {}
    own = source.fields_for(model)
    reference = None if fields.keys().isdisjoint(own) else _reference(fields, reader, model, source)
    for name, tensor in model.inputs.items():
        if reference is not None and name in own:
            continue
        if name in fields and not (fields[name] is None and _may_be_left_out(tensor, model, source)):
            indices = _indices(name, fields[name], model, reader) if name in AXES else None
            if indices is None:
                tensors[name] = reader.tensor(tensor, fields[name], spec.inputs[name].mask)
            else:
                tensors[name] = indices
    outputs = _outputs(reader, fields, model, needs_one=not computed)
    flag = fields.get(ADDITIVE_MASK)
    additive = flag is not None and FLAG.read(ADDITIVE_MASK, flag)
    return ParsedRequest(tensors, outputs, selection, additive, computed, reference)


def _indices(name: str, element: Any, model: Model, reader: JsonReader) -> np.ndarray | None:
    """The tensor of the graph's own input of indices; None where ``element`` is read as any other tensor."""
    before = reader.brackets
    if not isinstance(element, JsonArray) or len(element) <= MAX_ITEMS:
        element = reader.items(name, element, MAX_ITEMS)
    indices = index_input(model.signature, name, element)
    if indices is None:
        reader.brackets = before
    return indices


def _may_be_left_out(tensor: TensorSpec, model: Model, source: InputSource[Any]) -> bool:
    return not tensor.required or tensor.name in model.signature.omissible or tensor.name in source.replaced(model)


def _reference(fields: Mapping[str, Any], reader: JsonReader, model: Model, source: InputSource[Any]) -> Any:
    """The reference to ``source``. Where the model has an input of that name, too, only a text is a reference."""
    given = {name: fields[name] for name in source.fields_for(model) if name in fields}
    own = {name: part for name, part in given.items() if name not in model.inputs or isinstance(part, str)}
    return source.read(own, model, reader)


def _plan(
    tensors: dict[str, np.ndarray],
    parsed: ParsedRequest,
    model: Model,
    cache: BoundedCache[AttentionPlan],
    max_memory_bytes: int,
    stored: SourceInputs | None,
) -> AttentionPlan:
    """The request's plan, which is that of every request with the same shapes, parameters, outputs and options."""
    outputs, selection = parsed.outputs, parsed.selection
    key: tuple[object, ...] = (*outputs, *((name, array.shape or array.tobytes()) for name, array in tensors.items()))
    computed = parsed.computed if stored is None else (*parsed.computed, *stored.outputs)
    if selection is not NO_SELECTION or computed or stored is not None:
        key = selection, computed, stored and stored.cache_key, *key
    plan = cache.get(key)
    if plan is not None:
        check_values(model.signature, tensors, plan.run.estimate.sizes)
        return plan
    check_complete(outputs, computed, stored.covers(tensors) if stored else tensors, model)
    answered = graph_outputs(outputs, model.signature)
    first = next(iter(tensors))
    axes = LeadingAxes(model, first, tensors[first])
    inputs = {name: axes.expand(model.inputs[name], array) for name, array in tensors.items()}
    shapes = {name: [*array.shape] for name, array in inputs.items()}
    try:
        added = stored.add_to(inputs) if stored else inputs
        run = plan_run(model, added, outputs, selection, max_memory_bytes, computed, stored)
    except (WrongSize, OutOfRange) as error:
        raise axes.as_given(error, model, tensors) from None
    omitted = {name: axes.omitted(model.outputs[name].shape) for name in answered}
    if run.answer is None:
        count = number_count(model.signature, answered, run.estimate.sizes)
    else:
        omitted = {output.name: _omitted(output, omitted, model) for output in run.answer.outputs}
        count = sum(output.count for output in run.answer.outputs)
    frame = _frame(model.name, outputs, selection)
    plan = AttentionPlan(run, shapes, omitted, count, frame, selection.decimals)
    if run.may_be_cached:
        cache.put(key, plan)
    return plan


def _omitted(output: AnsweredOutput, omitted: dict[str, tuple[int, ...]], model: Model) -> tuple[int, ...]:
    """The axes of an answered output that the request omits in the output's source."""
    rank = len(model.outputs[output.source].shape)
    return tuple(place for place, axis in enumerate(output.axes) if rank + axis in omitted[output.source])


def _frame(block: str, outputs: list[str], selection: Selection) -> list[bytes]:
    """The JSON of a response around its arrays."""
    fields = answered_fields(outputs, selection)
    return (b"{%b}" % b",".join([b'"block":%b' % orjson.dumps(block), *fields])).split(PLACEHOLDER)


def answered_fields(outputs: Sequence[str], selection: Selection) -> list[bytes]:
    """The JSON fields of ``outputs`` with a PLACEHOLDER for each array; the largest weights are in an object."""
    fields: list[bytes] = []
    for name in outputs:
        first, *rest = answered_names(name, selection)
        if name == "weights" and selection.weights_top_k:
            fields.append(b'"weights":{"indices":%b,"values":%b}' % (PLACEHOLDER, PLACEHOLDER))
            del rest[0]
        else:
            fields.append(b"%b:%b" % (orjson.dumps(first), PLACEHOLDER))
        fields += [b"%b:%b" % (orjson.dumps(other), PLACEHOLDER) for other in rest]
    return fields


def _outputs(reader: JsonReader, fields: Mapping[str, Any], model: Model, needs_one: bool) -> list[str]:
    if fields.get("outputs") is None:
        return list(DEFAULT_OUTPUTS)
    outputs = reader.texts("outputs", fields["outputs"])
    for name in outputs:
        if name not in model.outputs and name not in (derived := derived_outputs(model.signature)):
            there = (*model.outputs, *derived)
            hint = name_hint(name, there)
            start = f"unknown output {name!r}{hint}{' Available' if hint else '; available'}"
            raise Malformed(f"{start}: {', '.join(there)}", "outputs")
    if (needs_one and not outputs) or len(set(outputs)) != len(outputs):
        raise Invalid(f"expected one or more outputs without duplicates, got {outputs}", "outputs")
    return outputs
