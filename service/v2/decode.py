"""A V2 inference request, understood: the JSON, the bytes behind it, and what of the model is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from simdjson import Array, Object

from service.errors import Invalid, Malformed, TooLarge
from service.json_document import document
from service.json_tensor import Reader, cast, word
from service.model import Model
from service.shape import Sizes
from service.signature import hold
from service.v2 import parameters, tensor
from service.v2.datatype import BOOL, DATATYPES, Datatype, datatype
from service.v2.raw import raw


@dataclass(frozen=True)
class Wanted:
    """One output asked for: as binary data or JSON, and as its tensor or its ``classes`` largest."""

    name: str
    binary: bool
    classes: int = 0


@dataclass(frozen=True)
class Asked:
    """What the request asks: inputs as the graph takes them, and outputs as the client takes them."""

    inputs: dict[str, np.ndarray]
    outputs: list[Wanted]
    sizes: Sizes
    rows: int
    id: str | None = None
    timeout: int = 0  # microseconds; 0 = none

    @property
    def names(self) -> list[str]:
        return [wanted.name for wanted in self.outputs]


def decode(body: memoryview, json_length: int | None, model: Model, most_memory: int) -> Asked:
    """Understand ``body``, whose first ``json_length`` bytes are JSON: all where None; where 0, it is the one input.

    Raises:
        Malformed: not the protocol, or an input, output or parameter that the model does not have.
        Invalid: a tensor or parameter that is wrong.
        TooLarge: it would need more than ``most_memory`` bytes.
    """
    if json_length == 0:
        return _held(model, most_memory, raw(body, model), [Wanted(name, True) for name in model.outputs])
    content, attached = body[:json_length], body[len(body) if json_length is None else json_length :]
    with document(content) as request:
        reader = Reader()
        given = parameters.fields("the request", request.get("parameters"))
        reserved = parameters.reserved(given)
        inputs = _inputs(request.get("inputs"), reader, tensor.Attached(attached, model.name), model)
        for name, array in parameters.own(given, model).items():
            if name in inputs:
                raise Malformed(f"'{name}' is given as input and as parameter")
            inputs[name] = array
        outputs = _outputs(request.get("outputs"), reserved.get("binary_data_output", False), model)
        reader.finish(content, strict=False)
        return _held(model, most_memory, inputs, outputs, _id(request.get("id")), reserved.get("timeout", 0))


def _held(
    model: Model,
    most_memory: int,
    inputs: dict[str, np.ndarray],
    outputs: list[Wanted],
    request_id: str | None = None,
    timeout: int = 0,
) -> Asked:
    rows = hold(model, inputs)
    sizes = model.bind(inputs)
    asked = Asked(inputs, outputs, sizes, rows, request_id, timeout)
    if model.card:
        needed = model.memory(asked.names, sizes, model.graph_for(asked.inputs, asked.names, sizes))
        if needed > most_memory:
            raise TooLarge(
                f"this request needs about {needed:,} bytes, which exceeds the maximum allowed (max_memory_bytes), "
                f"{most_memory:,} bytes"
            )
    return asked


def _inputs(element: Any, reader: Reader, attached: tensor.Attached, model: Model) -> dict[str, np.ndarray]:
    inputs: dict[str, np.ndarray] = {}
    for entry in _entries("inputs", element):
        name = _name("inputs", entry)
        if name in inputs:
            raise Malformed(f"input '{name}' already exists in request")
        if name not in model.inputs:
            raise Malformed(f"unexpected inference input '{name}' for model '{model.name}'")
        of = _datatype(name, entry.get("datatype"), model)
        sizes = tensor.shape(name, entry.get("shape"), reader)
        if model.inputs[name].shape == () and sizes == (1,):  # a single number may say so
            array = _array(name, of, (1,), entry, reader, attached, model).reshape(())
        else:
            array = _array(name, of, sizes, entry, reader, attached, model)
        declared = model.inputs[name].dtype
        inputs[name] = array if array.dtype == declared else cast(name, array, declared, mask=True)
    attached.finish()
    return inputs


def _array(
    name: str,
    of: Datatype,
    sizes: tuple[int, ...],
    entry: Object,
    reader: Reader,
    attached: tensor.Attached,
    model: Model,
) -> np.ndarray:
    given = parameters.fields(f"input '{name}'", entry.get("parameters"))
    if "shared_memory_region" in given:
        raise Malformed(f"input '{name}': shared memory is not offered here; send data or binary data")
    size, data = given.get("binary_data_size"), entry.get("data")
    if (size is None) == (data is None):
        raise Malformed(f"input '{name}' must have exactly one of 'data' and the parameter 'binary_data_size'")
    if size is None:
        return tensor.from_json(name, of, sizes, data, reader)
    if type(size) is not int or size < 0:
        raise Malformed(f"input '{name}': expected binary_data_size to be a whole number from 0, got {word(size)}")
    return tensor.from_bytes(name, model.name, of, sizes, attached.take(name, size))


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


def _outputs(element: Any, binary: bool, model: Model) -> list[Wanted]:
    wanted: dict[str, Wanted] = {}
    for entry in _entries("outputs", element) if element is not None else ():
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


def _entries(what: str, element: Any) -> Sequence[Object]:
    entries: list[Any] | None = list(element) if isinstance(element, Array) else None
    if entries is None or not all(isinstance(entry, Object) for entry in entries):
        raise Malformed(f"expected '{what}' to be a list of tensors, got {word(element)}")
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
