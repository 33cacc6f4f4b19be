"""A request's ``parameters``: the protocol's reserved keys, and the model's own single numbers and flags."""

from collections.abc import Callable
from typing import Any

import numpy as np
from simdjson import Object

from service.errors import Malformed
from service.json_tensor import cast, scalar, word
from service.model import Model


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64


RESERVED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "sequence_id": (lambda value: isinstance(value, str) or _whole(value), "a whole number or a string"),
    "sequence_start": (lambda value: isinstance(value, bool), "a boolean"),
    "sequence_end": (lambda value: isinstance(value, bool), "a boolean"),
    "priority": (_whole, "a whole number"),
    "timeout": (_whole, "a whole number of microseconds"),
    "binary_data_output": (lambda value: isinstance(value, bool), "a boolean"),
}


def fields(owner: str, element: Any) -> dict[str, Any]:
    """A flat ``parameters`` object; none is an empty one.

    Raises:
        Malformed: no object, or a value that is no string, number or boolean.
    """
    if element is None:
        return {}
    if not isinstance(element, Object):
        raise Malformed(f"{owner}: expected parameters to be an object, got {word(element)}")
    found = dict(element.items())  # a look-up for each name would look through all of them, each time
    for name, value in found.items():
        if value is None or isinstance(value, (dict, list)):
            got = "null" if value is None else "an object" if isinstance(value, dict) else "a list"
            raise Malformed(f"{owner}: expected parameter '{name}' to be text, a number or a boolean, got {got}")
    return found


def reserved(given: dict[str, Any]) -> dict[str, Any]:
    """Those of a request's parameters that the protocol reserves, held to their types.

    Raises:
        Malformed: another type, or a key reserved for servers.
    """
    for name, value in given.items():
        if name.startswith("triton_") or name == "headers":
            raise Malformed(f"parameter '{name}' is reserved and may not be given by a client")
        if name in RESERVED and not RESERVED[name][0](value):
            raise Malformed(f"expected parameter '{name}' to be {RESERVED[name][1]}, got {word(value)}")
    return {name: value for name, value in given.items() if name in RESERVED}


def own(given: dict[str, Any], model: Model) -> dict[str, np.ndarray]:
    """Those that are the model's, as the engine takes them.

    Raises:
        Malformed: one that is neither reserved nor the model's.
        Invalid: one of another type or past its range.
    """
    found = {}
    for name, value in given.items():
        if name in RESERVED:
            continue
        of = model.parameters.get(name)
        if of is None or of.dtype.kind not in "biuf":
            known = ", ".join([*model.parameters, *RESERVED])
            raise Malformed(f"unknown parameter '{name}' for model '{model.name}'; there are {known}")
        found[name] = cast(name, scalar(name, value, of.dtype), of.dtype)
    return found
