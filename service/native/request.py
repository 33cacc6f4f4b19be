"""Decoding of a native request: JSON to the arrays of a run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from service.budget import Reservation
from service.cache import BoundedCache
from service.codec.json_parser import JsonObject, parse_object
from service.codec.json_reader import JsonReader
from service.codec.json_slices import LongList, LongText
from service.codec.long_tensor import LongTensor, read_all
from service.codec.steps import Steps
from service.engine.task import InferenceTask
from service.errors import Invalid, Malformed
from service.http.body import Body
from service.http.response import TEXT_BYTES
from service.model.checks import check_values
from service.model.estimate import RunEstimate, number_count
from service.model.masks import ADDITIVE_MASK, check_masks
from service.model.model import Model
from service.native.leading_axes import LeadingAxes
from service.tensors.dims import dim_size

DEFAULT_OUTPUTS = ("output", "weights")
ITEM_BYTES = 4  # of a number in an answer
SORTING_BYTES = 12  # of a weight while the largest are searched
CHOICES = ("outputs", "average_attn_weights", "weights_top_k")  # fields that are no inputs of the graph


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """What follows from the shapes and parameters of a request, and from the requested outputs."""

    estimate: RunEstimate
    shapes: dict[str, list[int]]  # of the inputs, as the graph takes them
    omitted: dict[str, tuple[int, ...]]  # the axes of each output that the request omits
    output_count: int  # numbers in its outputs
    frame: list[bytes]  # the JSON of a response around its arrays


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """A decoded request: its run, and how its outputs are sent."""

    task: InferenceTask
    plan: RequestPlan
    outputs: list[str]
    average_attn_weights: bool
    weights_top_k: int | None

    @property
    def response_bytes(self) -> int:
        """Upper bound in bytes on the response, as arrays and as text."""
        return (ITEM_BYTES + TEXT_BYTES + (SORTING_BYTES if self.weights_top_k else 0)) * self.plan.output_count


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """The fields of a request's JSON; long tensors are still to be read."""

    tensors: dict[str, np.ndarray | LongTensor]
    outputs: list[str]
    average_attn_weights: bool
    weights_top_k: int | None
    additive_mask: bool


def parse(body: Body, parts: Sequence[LongText | LongList], model: Model) -> ParsedRequest:
    """The fields of ``body``, of which ``parts`` were cut out.

    Raises:
        Malformed, Invalid: as ``decode``.
    """
    with parse_object(body) as json, np.errstate(over="ignore"):  # no object of it may outlive the document
        reader = JsonReader(parts)
        parsed = parse_fields(read_fields(json, model), reader, model)
        reader.finish(body)
        return parsed


def decode(
    body: Body,
    parts: Sequence[LongText | LongList],
    model: Model,
    cache: BoundedCache[RequestPlan],
    most_memory: int,
    reservation: Reservation,
) -> Steps[AttentionRequest]:
    """Decode ``body``, of which ``parts`` were cut out, as a request to ``model``.

    What its tensors take is added to ``reservation``.

    Raises:
        Malformed: not JSON, or a field the block does not have.
        Invalid: a tensor or option that is wrong; ``field`` names it.
        TooMuchMemory, Overloaded: it would need more than ``most_memory`` bytes, or there is no room for its tensors.
    """
    parsed = parse(body, parts, model)
    tensors = yield from read_all(parsed.tensors, reservation)
    return complete(parsed, tensors, model, cache, most_memory)


def complete(
    parsed: ParsedRequest,
    tensors: dict[str, np.ndarray],
    model: Model,
    cache: BoundedCache[RequestPlan],
    most_memory: int,
) -> AttentionRequest:
    """The request with these ``tensors``, in the order of the model's inputs.

    Raises:
        Invalid: a tensor or option that is wrong; ``field`` names it.
        TooMuchMemory: it would need more than ``most_memory`` bytes.
    """
    if not parsed.additive_mask:
        check_masks(model, tensors)
    plan = _plan(tensors, parsed.outputs, model, cache, most_memory)
    estimate, top_k = plan.estimate, parsed.weights_top_k
    if top_k is not None and top_k > (keys := dim_size(model.outputs["weights"].shape[-1], estimate.sizes)):
        raise Invalid(f"expected at most {keys}, the number of keys, got {top_k}", "weights_top_k")
    inputs = {name: array.reshape(plan.shapes[name]) for name, array in tensors.items()}
    task = InferenceTask(model, estimate, inputs, parsed.outputs, estimate.sizes.get("batch", 1))
    return AttentionRequest(task, plan, parsed.outputs, parsed.average_attn_weights, top_k)


def read_fields(json: JsonObject, model: Model, others: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a request: the model's inputs, ``CHOICES``, and ``others``.

    Raises:
        Malformed: another field, or one that is given twice.
    """
    assert model.spec is not None
    choices = (*others, *CHOICES, ADDITIVE_MASK) if model.masks else (*others, *CHOICES)
    fields = {}
    for name in json:
        if name not in model.inputs and name not in choices:
            raise Malformed(f"unknown field; {model.spec.block} takes {', '.join((*model.inputs, *choices))}", name)
        if name in fields:
            raise Malformed("a field is given twice")
        fields[name] = json[name]
    return fields


def parse_fields(fields: Mapping[str, Any], reader: JsonReader, model: Model) -> ParsedRequest:
    """The tensors and options in ``fields``.

    Raises:
        Malformed, Invalid: as ``decode``.
    """
    spec = model.spec
    assert spec is not None
    tensors = {
        name: reader.tensor(tensor, fields[name], spec.inputs[name].mask)
        for name, tensor in model.inputs.items()
        if name in fields and not (fields[name] is None and not tensor.required)
    }
    outputs = _outputs(reader, fields, model)
    average = _flag(fields, "average_attn_weights")
    top_k = _count(fields, "weights_top_k")
    if (average or top_k) and "weights" not in outputs:
        raise Invalid("needs weights among the outputs", "average_attn_weights" if average else "weights_top_k")
    return ParsedRequest(tensors, outputs, average, top_k, _flag(fields, ADDITIVE_MASK))


def _plan(
    tensors: dict[str, np.ndarray],
    outputs: list[str],
    model: Model,
    cache: BoundedCache[RequestPlan],
    most_memory: int,
) -> RequestPlan:
    """The request's plan, which is that of every request with the same shapes, parameters and outputs."""
    key = (*outputs, *((name, array.shape or array.tobytes()) for name, array in tensors.items()))
    plan = cache.get(key)
    if plan is not None:
        check_values(model.signature, tensors, plan.estimate.sizes)
        return plan
    missing = [name for name, spec in model.inputs.items() if spec.required and name not in tensors]
    if missing:
        raise Invalid("required, and not given", missing[0])
    first = next(iter(tensors))
    axes = LeadingAxes(model, first, tensors[first])
    inputs = {name: axes.expand(model.inputs[name], array) for name, array in tensors.items()}
    estimate = model.estimate(inputs, outputs, model.bind(inputs), most_memory)
    shapes = {name: [*array.shape] for name, array in inputs.items()}
    omitted = {name: axes.omitted(model.outputs[name].shape) for name in outputs}
    names = [orjson.dumps(name) for name in outputs]
    frame = [b'{"block":%b,%b:' % (orjson.dumps(model.name), names[0]), *(b",%b:" % name for name in names[1:]), b"}"]
    plan = RequestPlan(estimate, shapes, omitted, number_count(model.signature, outputs, estimate.sizes), frame)
    cache.put(key, plan)
    return plan


def _outputs(reader: JsonReader, fields: Mapping[str, Any], model: Model) -> list[str]:
    if fields.get("outputs") is None:
        return list(DEFAULT_OUTPUTS)
    outputs = reader.texts("outputs", fields["outputs"])
    for name in outputs:
        if name not in model.outputs:
            raise Malformed(f"unknown output {name!r}; there are {', '.join(model.outputs)}", "outputs")
    if not outputs or len(set(outputs)) != len(outputs):
        raise Invalid(f"expected at least one output, each once, got {outputs}", "outputs")
    return outputs


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise Invalid("expected a boolean", name)


def _count(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (type(value) is int and value > 0):
        return value
    raise Invalid("expected a whole number from 1", name)
