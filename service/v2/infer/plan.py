"""The plan of a request, cached: many requests of a client differ in nothing but their numbers and their id.

A request's template is its JSON without its id and without the numbers of its tensors. Two requests with the same
template differ in nothing else: what is cut out is either copied (an id without escapes) or parsed by itself (a flat
list of numbers). So the plan of a request, which is what its JSON asks for, is cached by the template.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from service.base.budget import Reservation
from service.base.steps import Steps
from service.http.body import Body
from service.http.response import TEXT_BYTES
from service.inference.plan import RunPlan
from service.model.estimate import number_count
from service.model.model import Model
from service.selection.answer import SCALES, answered_names
from service.selection.options import NO_SELECTION, Selection
from service.v2.datatypes import BYTES
from service.v2.infer.tensors import BinaryInput, check_length, is_packed

ID = re.compile(rb'\{"id": ?("[ !#-\[\]-~]{0,4096}")')  # how clients begin that send one; without escapes
DATA = b'"data":'
DATA_KEY = re.compile(rb'"data"\s*:')
MAX_LISTS = 64
MAX_TEMPLATE_BYTES = 4096  # a longer one is not cached
SORTING_BYTES = 28  # of a number while the largest of a row are searched
CLASS_BYTES = 160  # of a class as text, with its objects


@dataclass(slots=True)
class RequestTemplate:
    """A request's JSON without its id and numbers; the id as JSON; where each list of numbers begins and ends."""

    content: tuple[bytes, ...]  # the pieces around what was cut out
    id: bytes | None
    lists: list[tuple[int, int]]

    @property
    def is_plain(self) -> bool:
        """True if exactly the ``"data"`` keys were cut out. Without backslashes no JSON string contains ``"data"``."""
        text = b"\0".join(self.content)
        return b"\\" not in text and len(DATA_KEY.findall(text)) == len(self.lists)


def find_template(content: bytes) -> RequestTemplate | None:
    """The template of a JSON document; None where it cannot be found by these simple means."""
    pieces = []
    lists: list[tuple[int, int]] = []
    place = 0
    request_id = None
    if given := ID.match(content):
        request_id = given[1]
        pieces.append(content[: given.start(1)])
        place = given.end()
    length = len(content)
    while (key := content.find(DATA, place, place + MAX_TEMPLATE_BYTES)) >= 0:
        start = key + len(DATA)
        if content[start : start + 1] == b" ":
            start += 1
        end = content.find(b"]", start) + 1
        if content.rfind(b"[", start, end) != start or len(lists) == MAX_LISTS:  # not a flat list
            return None
        pieces.append(content[place:start])
        lists.append((start, end))
        length -= end - start
        place = end
    if length > MAX_TEMPLATE_BYTES:  # to copy and to search megabytes would keep other requests waiting
        return None
    pieces.append(content[place:])
    return RequestTemplate(tuple(pieces), request_id, lists)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """One requested output: as binary data or JSON, and as its tensor or its ``classes`` largest values.

    ``named``: the request lists it. Where a request lists none, it gets all.
    """

    name: str
    binary: bool
    classes: int = 0
    named: bool = True

    def max_bytes(self, count: int, item_bytes: int, rows: int) -> int:
        """Upper bound in bytes on this output of ``count`` numbers in ``rows`` rows, as an array and as text."""
        size = count * (item_bytes if self.binary else item_bytes + TEXT_BYTES)
        if self.classes:
            size += count * SORTING_BYTES + min(self.classes * rows, count) * CLASS_BYTES
        return size


@dataclass(frozen=True, slots=True)
class JsonInput:
    """An input whose numbers are a list in the JSON."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(slots=True)
class RequestContent:
    """The content of a request's JSON: the parameters, the places of the tensors, and the outputs to send."""

    parameters: Mapping[str, np.ndarray]
    binary_inputs: Sequence[BinaryInput]
    json_inputs: Sequence[JsonInput]
    outputs: Sequence[RequestedOutput]
    timeout_us: int = 0  # 0 = none
    priority: int = 0  # 1 is the highest; 0 = none
    additive_mask: bool = False  # a mask of nothing but 0 and 1 is to be added to the scores
    selection: Selection = NO_SELECTION
    reference: Any = None  # to the source of other inputs
    checked: int = 0  # numbers of masks and ids among the tensors
    list_bytes: int = field(init=False)  # of all JSON inputs as arrays
    attached_bytes: int = field(init=False)  # behind the JSON
    numeric_inputs: Sequence[BinaryInput] = field(init=False)
    packed_inputs: Sequence[BinaryInput] = field(init=False)  # strings and flags
    unpacked_bytes: int = field(init=False)  # upper bound on all of these, once they are unpacked

    def __post_init__(self) -> None:
        self.list_bytes = sum(prod(one.shape) * one.dtype.itemsize for one in self.json_inputs)
        self.attached_bytes = sum(binary.size for binary in self.binary_inputs)
        self.numeric_inputs = [binary for binary in self.binary_inputs if not is_packed(binary.dtype)]
        self.packed_inputs = [binary for binary in self.binary_inputs if is_packed(binary.dtype)]
        self.unpacked_bytes = sum(binary.unpacked_bytes for binary in self.packed_inputs)

    def take(self, attached: Body, model: Model) -> dict[str, np.ndarray]:
        """The parameters, and the tensors of numbers in the bytes behind the JSON.

        Raises:
            Malformed: more or fewer bytes than the JSON declares.
        """
        self._check_length(attached, model)
        inputs = dict(self.parameters)
        for binary in self.numeric_inputs:
            inputs[binary.name] = binary.array(attached)
        return inputs

    def unpack(self, attached: Body, model: Model, reservation: Reservation) -> Steps[dict[str, np.ndarray]]:
        """The tensors of strings and flags in the bytes behind the JSON.

        Raises:
            Malformed: more or fewer bytes than the JSON declares.
            Invalid: other strings than the JSON declares, or bytes that are no text.
            TooMuchMemory, Overloaded: there is no room for them.
        """
        self._check_length(attached, model)
        reservation.add(self.unpacked_bytes)
        unpacked = {}
        for binary in self.packed_inputs:
            unpacked[binary.name] = yield from binary.unpack(attached)
        return unpacked

    def _check_length(self, attached: Body, model: Model) -> None:
        if len(attached) != self.attached_bytes:
            check_length(self.binary_inputs, len(attached), model.name)

    def response_bytes(self, arrays: Mapping[str, np.ndarray]) -> int:
        """Upper bound in bytes on a response with these output ``arrays``, as arrays and as text."""
        size = 0
        for output in self.outputs:
            array = arrays[output.name]
            size += output.max_bytes(array.size, array.itemsize, len(array) if array.ndim else 1)
        return size

    def follows_from(self, template: RequestTemplate, model: Model) -> bool:
        """Whether each request to ``model`` with this template has this content.

        A number or flag among the tensors may choose another graph the next time: then it has not.
        """
        tensors = {one.name for one in self.binary_inputs} | {one.name for one in self.json_inputs}
        numeric = all(one.dtype.kind in "fiu" and one.dtype == model.inputs[one.name].dtype for one in self.json_inputs)
        all_cut = len(template.lists) == len(self.json_inputs) and template.is_plain
        return all_cut and numeric and tensors.isdisjoint(model.parameters) and self.reference is None


@dataclass(slots=True)
class InferPlan:
    """The content of a request, the plan of its run, and how its response is written.

    It keeps the JSON of its last response, and how much of it was text: the next one is likely to have the same shapes.
    """

    content: RequestContent
    rows: int
    run: RunPlan
    outputs: Sequence[RequestedOutput]  # arrays of the response
    response_bytes: int  # upper bound on a block's response, as arrays and as text; 0 of a model that is no block
    text_outputs: list[str]  # outputs that become text; the others are only copied
    has_classes: bool  # an output is answered as its largest values
    has_strings: bool  # some of what becomes text are strings
    written: int | None = None  # numbers and strings that became text in the last response
    last_frame: tuple[list[tuple[int, ...]], list[bytes]] | None = None  # its shapes, and its JSON around the numbers


def plan_response(content: RequestContent, rows: int, run: RunPlan, model: Model) -> InferPlan:
    """The plan of a request to ``model`` with this content."""
    outputs, size = content.outputs, 0
    if run.answer is not None:
        outputs = [
            replace(output, name=name, classes=0 if name in SCALES else output.classes)
            for output in content.outputs
            for name in answered_names(output.name, content.selection)
        ]
    if model.spec:  # the shapes of another model's outputs are unknown before its run
        sizes = run.estimate.sizes
        if run.answer is None:
            tensors = [model.outputs[output.name] for output in outputs]
            numbers = [(number_count(model.signature, [of.name], sizes), of.dtype.itemsize) for of in tensors]
        else:
            numbers = [(output.count, output.item_bytes) for output in run.answer.outputs]
            size = run.answer.memory
        pairs = zip(outputs, numbers, strict=True)
        size += sum(output.max_bytes(count, each, sizes.get("batch", 1)) for output, (count, each) in pairs)
    strings = {name for name, tensor in model.outputs.items() if tensor.dtype == BYTES}
    text_outputs = [one.name for one in outputs if not one.binary or one.classes or one.name in strings]
    has_classes = any(one.classes for one in outputs)
    has_strings = has_classes or any(name in strings for name in text_outputs)
    return InferPlan(content, rows, run, outputs, size, text_outputs, has_classes, has_strings)
