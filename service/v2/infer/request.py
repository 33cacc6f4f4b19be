"""Decoding of a V2 inference request: its JSON, and the bytes behind it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, TypeAlias

import numpy as np
import orjson

from service.base.aliases import field_hint, name_hint
from service.base.budget import Reservation
from service.base.errors import Invalid, Malformed
from service.base.steps import Steps
from service.codec.json_parser import JsonArray, JsonObject, numbers, parse_object
from service.codec.json_reader import JsonReader, describe
from service.codec.json_slices import LongList, LongText
from service.codec.long_tensor import LongTensor, cast_in_steps, fill, read_all
from service.engine.task import InferenceTask
from service.http.body import Body
from service.inference.plan import plan_run, run_outputs
from service.inference.source import InputSource, SourceInputs
from service.model.checks import check_values
from service.model.masks import ADDITIVE_MASK, check_masks
from service.model.model import Model
from service.selection.derived import derived_outputs
from service.v2 import signature
from service.v2.datatypes import DATATYPES, NAMES
from service.v2.infer import parameters
from service.v2.infer.plan import InferPlan, JsonInput, RequestContent, RequestedOutput, RequestTemplate, plan_response
from service.v2.infer.tensors import BinaryInput, fit, from_json, from_raw, read_shape

MAX_ENTRIES = 1024  # inputs or outputs in a request
MAX_CLASSES = 10_000  # of each row of an output
MAX_ID_CHARACTERS = 4096
JsonTensors: TypeAlias = dict[str, np.ndarray | LongTensor]  # long ones are still to be read


@dataclass(slots=True)
class InferRequest:
    """A decoded request: its run, its plan, and its id as JSON."""

    task: InferenceTask
    plan: InferPlan
    id: bytes | None = None

    @property
    def response_bytes(self) -> int:
        """Upper bound in bytes on the response, as arrays and as text."""
        return self.plan.response_bytes


def parse(
    content: bytes, parts: Sequence[LongText | LongList], model: Model, source: InputSource[Any]
) -> tuple[RequestContent, JsonTensors, bytes | None]:
    """The content of a request's JSON, of which ``parts`` were cut out; its tensors, and its id as JSON.

    Raises:
        Malformed: not the protocol, or an input, output or parameter that the model does not have.
        Invalid: a tensor or parameter that is wrong.
    """
    reader = JsonReader(parts)
    request = parse_object(content, parts)
    with np.errstate(over="ignore"):
        given = parameters.of_request(request.get("parameters"), reader)
        reserved = parameters.reserved(given, model)
        others = {name: value for name, value in given.items() if name not in reserved}
        if request.get("inputs") is None:
            _check_protocol(request, model)
        tensors, json_inputs, binary_inputs = _inputs(request.get("inputs"), reader, model)
        own = parameters.own(others, model, source.fields_for(model))
        for name in own:
            if name in tensors or any(name == binary.name for binary in binary_inputs):
                raise Malformed(f"'{name}' is given both as an input and as a parameter")
        outputs = _outputs(request.get("outputs"), reader, reserved.get("binary_data_output", False), model)
        declared: list[JsonInput | BinaryInput] = [*json_inputs, *binary_inputs]
        reader.finish(content, strict=False)
        asked = RequestContent(
            own,
            binary_inputs,
            json_inputs,
            outputs,
            timeout_us=reserved.get("timeout", 0),
            priority=reserved.get("priority", 0),
            additive_mask=reserved.get(ADDITIVE_MASK, False),
            selection=parameters.selection(others, model),
            reference=source.read(others, model, None) if model.spec else None,
            checked=sum(prod(one.shape) for one in declared if one.name in model.checked),
        )
        if asked.reference is None and any(isinstance(tensor, LongTensor) for tensor in tensors.values()):
            names = [*tensors, *(one.name for one in binary_inputs), *own]
            signature.check_complete(model, names, run_outputs(model, [output.name for output in outputs]))
        return asked, tensors, _id(reader.part(request.get("id")))


def read_tensors(unread: JsonTensors, model: Model, reservation: Reservation) -> Steps[dict[str, np.ndarray]]:
    """The tensors of a request's JSON, as the model takes them.

    Raises:
        Malformed, Invalid, TooMuchMemory, Overloaded: as ``read_all``.
    """
    tensors = yield from read_all(unread, reservation)
    for name, array in tensors.items():
        declared = model.inputs[name].dtype
        if array.dtype != declared:  # booleans of a mask
            flat = yield from cast_in_steps(name, array.reshape(-1), declared, True, reservation)
            tensors[name] = flat.reshape(array.shape)
    return tensors


def complete(
    asked: RequestContent,
    tensors: dict[str, np.ndarray],
    unpacked: dict[str, np.ndarray],
    attached: Body,
    model: Model,
    max_memory_bytes: int,
    stored: SourceInputs | None = None,
) -> tuple[dict[str, np.ndarray], InferPlan]:
    """The inputs and the plan of a parsed request, whose JSON has these ``tensors`` and is followed by ``attached``.

    The inputs include the ``unpacked`` strings and flags of ``attached``, and those ``stored`` in a source.

    Raises:
        Malformed: other bytes than the JSON declares.
        Invalid: a tensor that is wrong.
        TooMuchMemory: it would need more than ``max_memory_bytes`` bytes.
    """
    inputs = dict(unpacked)
    with np.errstate(over="ignore"):
        for one in asked.json_inputs:
            inputs[one.name] = fit(one.name, tensors[one.name], one.shape)
    inputs |= asked.take(attached, model)
    return _check(asked, inputs, model, max_memory_bytes, stored)


def decode_raw(
    body: Body, model: Model, max_memory_bytes: int, reservation: Reservation
) -> Steps[tuple[dict[str, np.ndarray], InferPlan]]:
    """The inputs and the plan of a body that has no JSON and is the model's one input.

    Raises:
        Malformed, Invalid, TooLarge: as for any other.
    """
    inputs = yield from from_raw(body, model, reservation)
    outputs = [RequestedOutput(name, binary=True) for name in model.all_outputs]
    return _check(RequestContent({}, [], [], outputs), inputs, model, max_memory_bytes)


def read_lists(
    plan: InferPlan, content: bytes, template: RequestTemplate, reservation: Reservation
) -> Steps[dict[str, np.ndarray] | None]:
    """The tensors in the JSON of a request whose plan is known; None if its lists do not fit the plan.

    Raises:
        TooMuchMemory, Overloaded: there is no room for them.
    """
    inputs: dict[str, np.ndarray] = {}
    reservation.add(plan.content.list_bytes)
    try:
        with np.errstate(over="ignore"):
            for one, (start, end) in zip(plan.content.json_inputs, template.lists, strict=True):
                pieces = numbers(content, start, end, one.dtype.kind)
                inputs[one.name] = yield from fill(one.name, pieces, one.shape, one.dtype)
    except (ValueError, Invalid):
        return None  # parsing the whole document finds the fault and its place
    return inputs


def take_known(plan: InferPlan, lists: Mapping[str, np.ndarray], attached: Body, model: Model) -> dict[str, np.ndarray]:
    """The inputs of a request whose plan is known, checked: its ``lists`` and strings, and the numbers behind its JSON.

    Raises:
        Malformed, Invalid: as for any other.
    """
    inputs = plan.content.take(attached, model)
    if lists:
        inputs = {**lists, **inputs}
    if model.signature.ranges:
        check_values(model.signature, inputs, plan.run.estimate.sizes)
    if model.masks and not plan.content.additive_mask:
        check_masks(model, inputs)
    return inputs


def _check(
    content: RequestContent,
    inputs: dict[str, np.ndarray],
    model: Model,
    max_memory_bytes: int,
    stored: SourceInputs | None = None,
) -> tuple[dict[str, np.ndarray], InferPlan]:
    """All inputs and the plan: ``inputs`` are checked against the model and each other, and the memory that they need
    against ``max_memory_bytes``."""
    computed: Sequence[str] = ()
    if stored is not None:
        inputs, computed = stored.add_to(inputs), stored.outputs
    outputs = [output.name for output in content.outputs]
    rows = signature.check_inputs(model, inputs, run_outputs(model, outputs, computed))
    run = plan_run(model, inputs, outputs, content.selection, max_memory_bytes, computed, stored)
    if not content.additive_mask:
        check_masks(model, inputs)
    return inputs, plan_response(content, rows, run, model)


def _check_protocol(request: JsonObject, model: Model) -> None:
    """Raises Malformed if a request without inputs has the form of the native API."""
    if any(name in model.inputs for name in islice(request, MAX_ENTRIES)):
        block = f"POST it to /v1/attention/{model.name}, or " if model.spec else ""
        raise Malformed(
            f"this is a body of the native API: {block}list its tensors: "
            '"inputs": [{"name": ..., "shape": [...], "datatype": "FP32", "data": [...]}]'
        )


def _inputs(element: Any, reader: JsonReader, model: Model) -> tuple[JsonTensors, list[JsonInput], list[BinaryInput]]:
    tensors: JsonTensors = {}
    json_inputs: list[JsonInput] = []
    binary_inputs: list[BinaryInput] = []
    place = 0
    for name, entry in _entries("input", element, reader):
        if name not in model.inputs:
            hint = field_hint(name, model.inputs) or f"; its inputs: {', '.join(model.inputs)}"
            raise Malformed(f"unexpected inference input '{name}' for model '{model.name}'{hint}")
        dtype = _dtype(name, reader.part(entry.get("datatype")), model)
        sizes = read_shape(name, entry.get("shape"), reader)
        declared = model.inputs[name]
        shape = () if declared.shape == () and sizes == (1,) else sizes  # a single number may have shape [1]
        size, data = _size_or_data(name, entry, reader)
        if size is None:
            nulls = name in model.masks and dtype.kind != "b"
            tensors[name] = from_json(name, dtype, sizes, data, reader, nulls)
            json_inputs.append(JsonInput(name, shape, dtype))
        else:
            binary_inputs.append(BinaryInput(name, model.name, dtype, shape, place, size, declared.dtype))
            place += size
    return tensors, json_inputs, binary_inputs


def _size_or_data(name: str, entry: JsonObject, reader: JsonReader) -> tuple[int | None, Any]:
    """How many bytes behind the JSON an input declares, or its data in the JSON."""
    given = parameters.fields(f"input '{name}'", entry.get("parameters"), reader)
    if "shared_memory_region" in given:
        raise Malformed(f"input '{name}': shared memory is not supported; send data or binary data")
    size, data = reader.part(given.get("binary_data_size")), entry.get("data")
    if (size is None) == (data is None):
        raise Malformed(f"input '{name}' must have exactly one of 'data' and the parameter 'binary_data_size'")
    if size is not None and (type(size) is not int or size < 0):
        raise Malformed(f"input '{name}': expected binary_data_size to be a whole number from 0, got {describe(size)}")
    return size, data


def _dtype(name: str, given: Any, model: Model) -> np.dtype:
    """The dtype of the datatype that an input declares: the model's; of a mask also BOOL."""
    declared = NAMES[model.inputs[name].dtype]
    if given != declared and not (name in model.masks and given == "BOOL"):
        if given not in DATATYPES:
            raise Malformed(
                f"input '{name}': expected datatype to be one of {', '.join(DATATYPES)}, got {describe(given)}"
            )
        also = " (added to the scores) or 'BOOL' (true = may attend)" if name in model.masks else ""
        raise Invalid(
            f"inference input '{name}' data-type is '{given}', but model '{model.name}' expects '{declared}'{also}"
        )
    return DATATYPES[given]


def _outputs(element: Any, reader: JsonReader, binary: bool, model: Model) -> list[RequestedOutput]:
    """The listed outputs, as JSON unless their parameters say binary; without a list all, as the request says."""
    outputs = []
    for name, entry in _entries("output", element, reader) if element is not None else ():
        if name not in model.outputs and name not in derived_outputs(model.signature):
            offered = [*model.outputs, *derived_outputs(model.signature)]
            hint = name_hint(name, offered) or f"; its outputs: {', '.join(offered)}"
            raise Malformed(f"unexpected inference output '{name}' for model '{model.name}'{hint}")
        given = parameters.fields(f"output '{name}'", entry.get("parameters"), reader)
        outputs.append(_output(name, given, reader))
    return outputs or [RequestedOutput(name, binary, named=False) for name in model.all_outputs]


def _output(name: str, given: JsonObject | dict[str, Any], reader: JsonReader) -> RequestedOutput:
    if "shared_memory_region" in given:
        raise Malformed(f"output '{name}': shared memory is not supported")
    binary, classes = reader.part(given.get("binary_data", False)), reader.part(given.get("classification", 0))
    if not isinstance(binary, bool):
        raise Malformed(f"output '{name}': expected binary_data to be a boolean, got {describe(binary)}")
    if type(classes) is not int or not 0 <= classes <= MAX_CLASSES:
        expected = f"expected classification to be a whole number from 0 to {MAX_CLASSES}"
        raise Malformed(f"output '{name}': {expected}, got {describe(classes)}")
    return RequestedOutput(name, binary, classes)


def _entries(kind: str, element: Any, reader: JsonReader) -> Iterator[tuple[str, JsonObject]]:
    """The tensors of a request's list of inputs or outputs, the ``kind``, with their names."""
    if isinstance(element, JsonArray) and len(element) > MAX_ENTRIES:
        raise Malformed(f"expected at most {MAX_ENTRIES} '{kind}s'")
    entries: list[Any] | None = list(element) if isinstance(element, JsonArray) else None
    if entries is None or not all(isinstance(entry, JsonObject) for entry in entries):
        raise Malformed(f"expected '{kind}s' to be a list of tensors, got {describe(reader.part(element))}")
    reader.brackets += 1
    names = set()
    for entry in entries:
        name = reader.part(entry.get("name"))
        if not isinstance(name, str):
            raise Malformed(f"expected a 'name' in each of '{kind}s', got {describe(name)}")
        if name in names:
            raise Malformed(f"{kind} '{name}' already exists in request")
        names.add(name)
        yield name, entry


def _id(given: Any) -> bytes | None:
    if given is None:
        return None
    if not isinstance(given, str | LongText):
        raise Malformed(f"expected 'id' to be a string, got {describe(given)}")
    if isinstance(given, LongText) or len(given) > MAX_ID_CHARACTERS:
        raise Malformed(f"expected 'id' to have at most {MAX_ID_CHARACTERS} characters")
    return orjson.dumps(given)
