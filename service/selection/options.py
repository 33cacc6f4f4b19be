"""The options of a request that select, reduce and round attention; both APIs give them the same names and meanings."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from service.errors import Invalid
from service.model.spec import Signature
from service.selection.indices import Indices, read_indices
from service.shorten import shortened

Reduction = Literal["mean", "max"]
Dtype = Literal["float32", "float16", "uint8"]

MAX_QUOTED_BYTES = 60  # of a text that an error repeats
REDUCTIONS = ("mean", "max")
DTYPES = ("float32", "float16", "uint8")
WORDS = dict.fromkeys(("reduce_heads", "reduce_layers", "weights_pool_by"), REDUCTIONS) | {"weights_dtype": DTYPES}
DECIMALS, MAX_DECIMALS = "decimals", 7
AXES = ("layers", "heads", "queries")  # options that select; an input of the graph with such a name is the graph's
OPTIONS = (
    *AXES,
    *("reduce_heads", "reduce_layers", "average_attn_weights"),
    *("weights_top_k", "weights_dtype", "weights_pool", "weights_pool_by"),
    DECIMALS,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The options of a request; None = not given."""

    layers: Indices | None = None
    heads: Indices | None = None
    queries: Indices | None = None
    average_attn_weights: bool | None = None  # reduce_heads is mean then
    reduce_heads: Reduction | None = None
    reduce_layers: Reduction | None = None
    weights_top_k: int | None = None
    weights_dtype: Dtype | None = None
    weights_pool: int | None = None
    weights_pool_by: Reduction | None = None
    decimals: int | None = None  # of the numbers in JSON; any model has this option

    def given(self) -> list[str]:
        """The names of the given options that change what is answered, not only how it is written."""
        return [name for name in self.__slots__ if name != DECIMALS and getattr(self, name)]


NOTHING = Selection()


def read_selection(given: Mapping[str, Any]) -> Selection:
    """The options in ``given``, whose names are of ``OPTIONS``; one that is None is not given.

    Raises:
        Invalid: one of another type, or two that contradict each other.
    """
    options = {name: value for name, value in given.items() if value is not None}
    if not options:
        return NOTHING
    values = {name: _read(name, value) for name, value in options.items()}
    if values.get("average_attn_weights") and values.setdefault("reduce_heads", "mean") != "mean":
        raise Invalid("means reduce_heads mean, and reduce_heads is max", "average_attn_weights")
    selection = Selection(**values)
    if selection.weights_pool_by and not selection.weights_pool:
        raise Invalid("needs weights_pool beside it", "weights_pool_by")
    if selection.weights_top_k and selection.weights_pool:
        raise Invalid("cannot be given together with weights_pool", "weights_top_k")
    return selection


def index_input(signature: Signature, name: str, value: Any) -> np.ndarray | None:
    """The tensor of a graph's own input of indices, such as the ``layers`` of an encoder, from a number or text.

    None where the graph has no such input, or ``value`` is neither.

    Raises:
        Invalid: it is no such number or text, or an index is out of range.
    """
    tensor, spec = signature.inputs.get(name), signature.spec
    if tensor is None or spec is None or not (type(value) is int or isinstance(value, str)):
        return None
    last = spec.inputs[name].maximum
    if len(tensor.shape) != 1 or tensor.dtype.kind != "i" or not isinstance(last, int):
        return None
    size = last + 1
    places = np.arange(size, dtype=tensor.dtype)[read_indices(name, value).resolve(name, size, name)]
    return np.ascontiguousarray(places)


def _read(name: str, value: Any) -> Any:
    if name in AXES:
        return read_indices(name, value)
    if name == "average_attn_weights":
        if isinstance(value, bool):
            return value
        raise Invalid(f"expected a boolean, got {_quoted(value)}", name)
    if name == DECIMALS:
        if type(value) is int and 0 <= value <= MAX_DECIMALS:
            return value
        raise Invalid(f"expected a whole number from 0 to {MAX_DECIMALS}, got {_quoted(value)}", name)
    words = WORDS.get(name)
    if words is None:
        if type(value) is int and 0 < value < 2**31:
            return value
        raise Invalid(f"expected a whole number from 1, got {_quoted(value)}", name)
    if isinstance(value, str) and value in words:
        return value
    raise Invalid(f"expected {', '.join(words[:-1])} or {words[-1]}, got {_quoted(value)}", name)


def _quoted(value: Any) -> str:
    if isinstance(value, str | int | float):
        return json.dumps(value if not isinstance(value, str) else shortened(value, MAX_QUOTED_BYTES))
    return "a list or an object"
