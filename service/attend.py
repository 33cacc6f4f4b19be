"""The native face: decode a JSON request to work for the engine, and encode the answer. No word of HTTP in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
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
class Form:
    """What follows from the shapes and parameters of a request, and from the outputs asked for."""

    need: Need
    lifted: dict[str, list[int]]  # the shapes of the inputs, as the graph takes them
    left_out: dict[str, tuple[int, ...]]  # the axes of the outputs that the request leaves out
    numbers: int  # that its outputs hold
    frame: list[bytes]  # the JSON of an answer, but for its lists


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, understood: inputs as the graph takes them, and what to answer."""

    inputs: dict[str, np.ndarray]
    form: Form
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
    with document(body) as parsed, np.errstate(over="ignore"):
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

    form = _form(read, outputs, model, most_memory)
    if top_k is not None and top_k > (keys := length(model.outputs["weights"].shape[-1], form.need.sizes)):
        raise Invalid(f"expected at most {keys}, the number of keys, got {top_k}", "weights_top_k")
    inputs = {name: array.reshape(form.lifted[name]) for name, array in read.items()}
    return Asked(inputs, form, outputs, average, top_k)


def _form(read: dict[str, np.ndarray], outputs: list[str], model: Model, most_memory: int) -> Form:
    """The request's form, which is that of another of the same shapes and parameters."""
    key = (*outputs, *((name, array.shape or array.tobytes()) for name, array in read.items()))
    form: Form | None = model.plans.get(key)
    if form is not None:
        model.hold_values(read, form.need.sizes)
        return form
    missing = [name for name, of in model.inputs.items() if of.required and name not in read]
    if missing:
        raise Invalid("required, and not given", missing[0])
    first = next(iter(read))
    rank = Rank(model.inputs[first], read[first])
    inputs = {name: rank.lift(model.inputs[name], array) for name, array in read.items()}
    need = model.need(inputs, outputs, model.bind(inputs), most_memory)
    lifted = {name: [*array.shape] for name, array in inputs.items()}
    left_out = {name: rank.out(model.outputs[name].shape) for name in outputs}
    names = [orjson.dumps(name) for name in outputs]
    frame = [b'{"block":%b,%b:' % (orjson.dumps(model.name), names[0]), *(b",%b:" % name for name in names[1:]), b"}"]
    form = Form(need, lifted, left_out, model.numbers(outputs, need.sizes), frame)
    model.remember(key, form)
    return form


def work(asked: Asked, model: Model, deadline: int | None = None) -> Work:
    """What the engine has to do for it, begun by ``deadline``, of ``time.perf_counter_ns``."""
    need = asked.form.need
    return Work(model, need, asked.inputs, asked.outputs, need.sizes.get("batch", 1), deadline=deadline)


def prepare(asked: Asked, found: Mapping[str, np.ndarray]) -> tuple[list[bytes], list[np.ndarray]]:
    """What is to be answered of what was ``found``: the JSON but for its lists, and these (``json_write.filled``).

    Raises:
        Invalid: an output that JSON cannot say.
    """
    frame = asked.form.frame
    lists: list[np.ndarray] = []
    for place, name in enumerate(asked.outputs):
        array, left_out = wide(found[name]), asked.form.left_out[name]
        _finite(name, array)
        if name == "weights" and asked.average_attn_weights:
            array, left_out = array.mean(axis=-3, keepdims=True), tuple({*left_out, array.ndim - 3})
        array = array.squeeze(left_out)
        if name == "weights" and asked.weights_top_k:
            before, after = frame[place : place + 2]
            inner = before + b'{"indices":', b',"values":', b"}" + after
            frame = [*frame[:place], *inner, *frame[place + 2 :]]
            lists += _largest(array, asked.weights_top_k)
        else:
            lists.append(array)
    return frame, lists


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


def _largest(weights: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the k largest weights of each query are, and they, largest first; of equal ones the earlier key."""
    indices = np.argsort(-weights, axis=-1, kind="stable")[..., :k]
    return np.ascontiguousarray(indices), np.ascontiguousarray(np.take_along_axis(weights, indices, axis=-1))
