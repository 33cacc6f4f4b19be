"""The native face: decode a JSON request to work for the engine, and encode the answer. No word of HTTP in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import simdjson

from service.bfloat16 import wide
from service.body import Body
from service.errors import Invalid, Malformed
from service.json_document import document
from service.json_tensor import Reader, is_finite
from service.model import Model, Need
from service.rank import Rank
from service.shape import length
from service.work import Work

DEFAULT_OUTPUTS = ("output", "weights")
CHOICES = ("outputs", "average_attn_weights", "weights_top_k")  # fields that are no input of the graph


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, understood: inputs as the graph takes them, and what to answer."""

    inputs: dict[str, np.ndarray]
    need: Need
    rank: Rank
    outputs: list[str]
    average_attn_weights: bool
    weights_top_k: int | None


def decode(body: Body, model: Model, most_memory: int) -> Asked:
    """Understand ``body`` as a request to ``model``.

    Raises:
        Malformed: not JSON, or a field the block does not have.
        Invalid: a tensor or option that is wrong; ``field`` names it.
        TooLarge: it would need more than ``most_memory`` bytes.
    """
    with document(body) as parsed:
        return _understand(parsed, body, model, most_memory)


def _understand(parsed: simdjson.Object, body: Body, model: Model, most_memory: int) -> Asked:
    card = model.card
    assert card is not None
    names = list(parsed)
    for name in names:
        if name not in model.inputs and name not in CHOICES:
            raise Malformed(f"unknown field; {card.block} takes {', '.join((*model.inputs, *CHOICES))}", name)
    fields = {name: parsed[name] for name in names}
    if len(fields) != len(names):
        raise Malformed("a field is given twice")

    reader = Reader()
    read = {
        name: reader.tensor(of, fields[name], card.inputs[name].mask)
        for name, of in model.inputs.items()
        if name in fields and not (fields[name] is None and not of.required)
    }
    outputs = _outputs(reader, fields, model)
    average = _flag(fields, "average_attn_weights")
    top_k = _count(fields, "weights_top_k")
    reader.finish(body)
    if (average or top_k) and "weights" not in outputs:
        raise Invalid("needs weights among the outputs", "average_attn_weights" if average else "weights_top_k")

    missing = [name for name, of in model.inputs.items() if of.required and name not in read]
    if missing:
        raise Invalid("required, and not given", missing[0])
    first = next(iter(read))
    rank = Rank(model.inputs[first], read[first])
    inputs = {name: rank.lift(model.inputs[name], array) for name, array in read.items()}
    need = _need(inputs, outputs, model, most_memory)
    keys = length(model.outputs["weights"].shape[-1], need.sizes)
    if top_k is not None and top_k > keys:
        raise Invalid(f"expected at most {keys}, the number of keys, got {top_k}", "weights_top_k")
    return Asked(inputs, need, rank, outputs, average, top_k)


def _need(inputs: dict[str, np.ndarray], outputs: list[str], model: Model, most_memory: int) -> Need:
    """What the request needs, which is what another of the same shapes and parameters needed."""
    shapes = [(name, array.shape or array.tobytes()) for name, array in inputs.items()]
    key = (*outputs, *shapes)
    need: Need | None = model.plans.get(key)
    if need is not None:
        model.hold_values(inputs, need.sizes)
        return need
    need = model.need(inputs, outputs, model.bind(inputs), most_memory)
    model.remember(key, need)
    return need


def work(asked: Asked, model: Model, deadline: int | None = None) -> Work:
    """What the engine has to do for it, begun by ``deadline``, of ``time.perf_counter_ns``."""
    rows = asked.need.sizes.get("batch", 1)
    return Work(model, asked.need, asked.inputs, asked.outputs, rows, deadline=deadline)


def prepare(asked: Asked, found: Mapping[str, np.ndarray], model: Model) -> dict[str, Any]:
    """What is to be answered as JSON, of what was ``found``.

    Raises:
        Invalid: an output that JSON cannot say.
    """
    answer: dict[str, Any] = {"block": model.name}
    for name in asked.outputs:
        array = wide(found[name])
        _finite(name, array)
        dims = model.outputs[name].shape
        if name == "weights" and asked.average_attn_weights:
            array, dims = array.mean(axis=-3), (*dims[:-3], *dims[-2:])
        array = asked.rank.lower(dims, array)
        answer[name] = _largest(array, asked.weights_top_k) if name == "weights" and asked.weights_top_k else array
    return answer


def _outputs(reader: Reader, fields: Mapping[str, Any], model: Model) -> list[str]:
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


def _finite(name: str, array: np.ndarray) -> None:
    """JSON has no infinity; only ``scores`` has one that means something, written as null."""
    if not (is_finite(array) or (name == "scores" and (array < np.inf).all())):
        raise Invalid(f"{name} is not finite: the numbers given overflow {array.dtype}")


def _largest(weights: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """The k largest weights of each query, largest first; of equal ones the earlier key."""
    indices = np.argsort(-weights, axis=-1, kind="stable")[..., :k]
    return {
        "indices": np.ascontiguousarray(indices),
        "values": np.ascontiguousarray(np.take_along_axis(weights, indices, axis=-1)),
    }
