"""A request's ``parameters``: the protocol's reserved keys, the model's own single numbers and flags, and others.

Clients send parameters of their own, such as the ``content_type`` of MLServer's codecs: those are ignored. What looks
like an option of a block is refused instead, as to ignore it would be a wrong answer.
"""

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import numpy as np

from service.base.aliases import canonical_names
from service.base.errors import Malformed
from service.base.messages import closest
from service.codec.json_parser import JsonArray, JsonObject
from service.codec.json_reader import JsonReader, describe, scalar
from service.codec.json_slices import LongList
from service.model.masks import ADDITIVE_MASK
from service.model.model import Model
from service.selection.options import AXES, NO_SELECTION, OPTIONS, Selection, index_input, read_selection
from service.tensors.cast import cast


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64


Check: TypeAlias = tuple[Callable[[Any], bool], str]  # of a value, with the words for the values that pass
FLAG: Check = (lambda value: isinstance(value, bool), "a boolean")
RESERVED: dict[str, Check] = {
    "sequence_id": (lambda value: isinstance(value, str) or _is_whole(value), "a whole number or a string"),
    "sequence_start": FLAG,
    "sequence_end": FLAG,
    "priority": (_is_whole, "a whole number"),
    "timeout": (_is_whole, "a whole number of microseconds"),
    "binary_data_output": FLAG,
}
BLOCK_OPTIONS = (  # some blocks have them, others do not
    *("attn_mask", "is_causal", "left_window_size", "right_window_size", "nonpad_kv_seqlen"),
    *("scale", "softcap", "past_key", "past_value"),
)
MAX_PARAMETERS = 256  # of a request, an input or an output
MAX_NAME_CHARACTERS = 1024  # of a parameter of a request: a look-up compares up to 256 names


def fields(owner: str, element: Any, reader: JsonReader) -> JsonObject | dict[str, Any]:
    """A ``parameters`` object; none is an empty one. Its values may be anything: most keys belong to clients.

    So it stays simdjson's object, whose lists and objects are not converted before they are refused or ignored.

    Raises:
        Malformed: no object, or more than ``MAX_PARAMETERS``.
    """
    if element is None:
        return {}
    if not isinstance(element, JsonObject):
        raise Malformed(f"{owner}: expected parameters to be an object, got {describe(reader.part(element))}")
    if len(element) > MAX_PARAMETERS:
        raise Malformed(f"{owner}: expected at most {MAX_PARAMETERS} parameters, got {len(element)}")
    return element


def of_request(element: Any, reader: JsonReader) -> dict[str, Any]:
    """A request's ``parameters``; of a name that is given twice, the first value.

    Raises:
        Malformed: no object, more than ``MAX_PARAMETERS``, or a name that is too long.
    """
    given = fields("the request", element, reader)
    names = list(given)
    if (longest := max(map(len, names), default=0)) > MAX_NAME_CHARACTERS:
        raise Malformed(
            f"expected names of parameters to have at most {MAX_NAME_CHARACTERS} characters, got one of {longest}"
        )
    return {name: reader.part(given.get(name)) for name in names}


def reserved(given: dict[str, Any], model: Model) -> dict[str, Any]:
    """A request's parameters that the protocol or a mask reserves, after a check of their types.

    Raises:
        Malformed: another type, a key reserved for servers, a value that is a list or an object.
    """
    checks = RESERVED | {ADDITIVE_MASK: FLAG} if model.masks else RESERVED
    for name, value in given.items():
        if isinstance(value, JsonArray | JsonObject | LongList):
            raise Malformed(f"expected parameter '{name}' to be a string, a number or a boolean, got {describe(value)}")
        if name.startswith("triton_") or name == "headers":
            raise Malformed(f"parameter '{name}' is reserved and may not be given by a client")
        if name in checks and not checks[name][0](value):
            raise Malformed(f"expected parameter '{name}' to be {checks[name][1]}, got {describe(value)}")
    return {name: value for name, value in given.items() if name in checks}


def selection(given: dict[str, Any], model: Model) -> Selection:
    """The options of a block; of another model, the options that any model has.

    Raises:
        Invalid: one of another type, or two that contradict each other.
    """
    names = [name for name in given if name in OPTIONS and name not in model.inputs]
    if not model.spec:
        names = [name for name in names if not OPTIONS[name].outputs]
    return read_selection({name: given[name] for name in names}) if names else NO_SELECTION


def own(given: dict[str, Any], model: Model, others: Collection[str]) -> dict[str, np.ndarray]:
    """The model's own single numbers and flags among the parameters ``given``, as the engine takes them.

    ``given`` has no reserved parameter; ``others`` are accepted, too.

    Raises:
        Malformed: one that is a tensor of the model, or that looks like an option of a block which this one lacks.
        Invalid: one of another type or past its range.
    """
    own = {}
    for name, value in given.items():
        declared = model.parameters.get(name)
        if declared is not None and declared.dtype.kind in "biuf":
            own[name] = cast(name, scalar(name, value, declared.dtype), declared.dtype)
        elif name in others and model.spec is not None:
            continue
        elif name in model.inputs:
            indices = index_input(model.signature, name, value) if name in AXES else None
            if indices is None:
                raise Malformed(f"'{name}' of model '{model.name}' is a tensor: send it in the inputs")
            own[name] = indices
        elif model.spec is not None and name not in OPTIONS:
            _refuse_option(name, model, others)
    return own


def _refuse_option(name: str, block: Model, others: Collection[str]) -> None:
    """Raises Malformed if ``name`` is an option of other blocks, or a misspelt option, or a misspelt one of ``others``.

    The similarity of is_casual to is_causal is 0.89, of causal 0.8; of content_type to any option below 0.6.
    """
    offered = (*block.inputs, *OPTIONS, *others)
    meant = (option for option in canonical_names(name) if option in block.parameters)
    likely = next(meant, None) or closest(name, (*offered, *BLOCK_OPTIONS))
    if likely:
        hint = f"; did you mean '{likely}'? Its" if likely in offered else "; its"
        there = ", ".join(block.parameters) or "none"
        raise Malformed(f"unknown parameter '{name}' for model '{block.name}'{hint} parameters: {there}")
