"""A V2 inference request, understood: the JSON, the bytes behind it, and what of the model is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from simdjson import Array, Object

from service import signature
from service.body import Body
from service.errors import Invalid, Malformed
from service.json_document import document
from service.json_tensor import Reader, cast, word
from service.model import Model, Need
from service.turns import Steps
from service.v2 import parameters, tensor
from service.v2.attachment import Attachment
from service.v2.datatype import BOOL, DATATYPES, Datatype, datatype
from service.v2.plan import Listed, Plan, Wanted
from service.v2.raw import raw
from service.v2.skeleton import Skeleton
from service.work import Work


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, understood: inputs as the graph takes them, and what the client wants to be told."""

    inputs: dict[str, np.ndarray]
    plan: Plan
    need: Need
    id: bytes | None = None  # as JSON


def decode(content: bytes, cut: Skeleton | None, attached: Body, model: Model, most_memory: int) -> Asked:
    """Understand the JSON ``content``, whose skeleton is ``cut``, and the bytes behind it.

    Raises:
        Malformed: not the protocol, or an input, output or parameter that the model does not have.
        Invalid: a tensor or parameter that is wrong.
        TooLarge: it would need more than ``most_memory`` bytes.
    """
    with document(content) as request, np.errstate(over="ignore"):
        plan, inputs, said = _understood(request, content, model)
    inputs |= plan.take(attached, model)
    need = _hold(plan, inputs, model, most_memory)
    if cut is not None and (said is None or cut.id is not None):
        plan.keep(cut, model)
    return Asked(inputs, plan, need, None if said is None else orjson.dumps(said))


def decode_raw(body: bytes, model: Model, most_memory: int) -> Asked:
    """Understand a body that has no JSON and is the model's one input.

    Raises:
        Malformed, Invalid, TooLarge: as for any other.
    """
    plan = Plan({}, [], [], [Wanted(name, True) for name in model.outputs])
    inputs = raw(body, model)
    return Asked(inputs, plan, _hold(plan, inputs, model, most_memory))


def decode_known(plan: Plan, content: bytes, attached: Body, cut: Skeleton, model: Model) -> Steps[Asked | None]:
    """A request whose skeleton was understood before; None where its lists are not what they were then.

    Raises:
        Malformed, Invalid: as for any other.
    """
    assert plan.need is not None
    inputs: dict[str, np.ndarray] = {}
    if plan.lists:
        view = memoryview(content)
        try:
            with np.errstate(over="ignore"):
                for of, (start, end) in zip(plan.lists, cut.lists, strict=True):
                    inputs[of.name] = yield from of.array(view[start:end])
        except (ValueError, Invalid):
            return None  # read as a whole, it will say what is wrong, and where
    inputs |= plan.take(attached, model)
    model.hold_values(inputs, plan.need.sizes)
    return Asked(inputs, plan, plan.need, cut.id)


def work(asked: Asked, model: Model, deadline: int | None = None) -> Work:
    """What the engine has to do for it, begun by ``deadline``, of ``time.perf_counter_ns``."""
    plan = asked.plan
    return Work(model, asked.need, asked.inputs, plan.names, plan.rows, plan.priority, deadline)


def _hold(plan: Plan, inputs: dict[str, np.ndarray], model: Model, most_memory: int) -> Need:
    """Hold ``inputs`` against the model and against each other, and what they need against ``most_memory`` bytes."""
    plan.rows = signature.hold(model, inputs)
    plan.need = model.need(inputs, plan.names, model.bind(inputs), most_memory)
    return plan.need


def _understood(request: Object, content: bytes, model: Model) -> tuple[Plan, dict[str, np.ndarray], str | None]:
    """The plan, the tensors that are in the JSON, and the id."""
    reader = Reader()
    given = parameters.fields("the request", request.get("parameters"))
    reserved = parameters.reserved(given)
    listed, lists, attachments = _inputs(request.get("inputs"), reader, model)
    own = parameters.own(given, model)
    for name in own:
        if name in listed or any(name == attachment.name for attachment in attachments):
            raise Malformed(f"'{name}' is given as input and as parameter")
    outputs = _outputs(request.get("outputs"), reader, reserved.get("binary_data_output", False), model)
    reader.finish(content, strict=False)
    plan = Plan(own, attachments, lists, outputs, reserved.get("timeout", 0), reserved.get("priority", 0))
    return plan, listed, _id(request.get("id"))


def _inputs(element: Any, reader: Reader, model: Model) -> tuple[dict[str, np.ndarray], list[Listed], list[Attachment]]:
    listed: dict[str, np.ndarray] = {}
    lists: list[Listed] = []
    attachments: list[Attachment] = []
    seen = set()
    place = 0
    for entry in _entries("inputs", element, reader):
        name = _name("inputs", entry)
        if name in seen:
            raise Malformed(f"input '{name}' already exists in request")
        if name not in model.inputs:
            raise Malformed(f"unexpected inference input '{name}' for model '{model.name}'")
        seen.add(name)
        of = _datatype(name, entry.get("datatype"), model)
        sizes = tensor.shape(name, entry.get("shape"), reader)
        declared = model.inputs[name]
        said = () if declared.shape == () and sizes == (1,) else sizes  # a single number may say so
        size, data = _place(name, entry)
        if size is None:
            array = tensor.from_json(name, of, sizes, data, reader).reshape(said)
            lists.append(Listed(name, said, of.dtype))
            listed[name] = array if array.dtype == declared.dtype else cast(name, array, declared.dtype, mask=True)
        else:
            attachments.append(Attachment(name, model.name, of, said, place, size, declared.dtype))
            place += size
    return listed, lists, attachments


def _place(name: str, entry: Object) -> tuple[int | None, Any]:
    """The bytes behind the JSON that an input says it has, or its data."""
    given = parameters.fields(f"input '{name}'", entry.get("parameters"))
    if "shared_memory_region" in given:
        raise Malformed(f"input '{name}': shared memory is not offered here; send data or binary data")
    size, data = given.get("binary_data_size"), entry.get("data")
    if (size is None) == (data is None):
        raise Malformed(f"input '{name}' must have exactly one of 'data' and the parameter 'binary_data_size'")
    if size is not None and (type(size) is not int or size < 0):
        raise Malformed(f"input '{name}': expected binary_data_size to be a whole number from 0, got {word(size)}")
    return size, data


def _datatype(name: str, said: Any, model: Model) -> Datatype:
    declared = datatype(model.inputs[name].dtype)
    masks = model.card is not None and model.card.inputs[name].mask  # booleans, true = may attend
    if said != declared.name and not (masks and said == BOOL.name):
        if said not in DATATYPES:
            raise Malformed(f"input '{name}': expected datatype to be one of {', '.join(DATATYPES)}, got {word(said)}")
        raise Invalid(
            f"inference input '{name}' data-type is '{said}', but model '{model.name}' expects '{declared.name}'"
        )
    return DATATYPES[said]


def _outputs(element: Any, reader: Reader, binary: bool, model: Model) -> list[Wanted]:
    wanted: dict[str, Wanted] = {}
    for entry in _entries("outputs", element, reader) if element is not None else ():
        name = _name("outputs", entry)
        if name in wanted:
            raise Malformed(f"output '{name}' already exists in request")
        if name not in model.outputs:
            raise Malformed(f"unexpected inference output '{name}' for model '{model.name}'")
        wanted[name] = _wanted(name, parameters.fields(f"output '{name}'", entry.get("parameters")), binary)
    return list(wanted.values()) or [Wanted(name, binary) for name in model.outputs]


def _wanted(name: str, given: dict[str, Any], binary: bool) -> Wanted:
    if "shared_memory_region" in given:
        raise Malformed(f"output '{name}': shared memory is not offered here")
    binary, classes = given.get("binary_data", binary), given.get("classification", 0)
    if not isinstance(binary, bool):
        raise Malformed(f"output '{name}': expected binary_data to be a boolean, got {word(binary)}")
    if type(classes) is not int or classes < 0:
        raise Malformed(f"output '{name}': expected classification to be a whole number from 0, got {word(classes)}")
    return Wanted(name, binary, classes)


def _entries(what: str, element: Any, reader: Reader) -> Sequence[Object]:
    entries: list[Any] | None = list(element) if isinstance(element, Array) else None
    if entries is None or not all(isinstance(entry, Object) for entry in entries):
        raise Malformed(f"expected '{what}' to be a list of tensors, got {word(element)}")
    reader.brackets += 1
    return entries


def _name(what: str, entry: Object) -> str:
    name = entry.get("name")
    if not isinstance(name, str):
        raise Malformed(f"expected a 'name' in each of '{what}', got {word(name)}")
    return name


def _id(said: Any) -> str | None:
    if said is not None and not isinstance(said, str):
        raise Malformed(f"expected 'id' to be a string, got {word(said)}")
    return said
