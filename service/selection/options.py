"""The options of a request that select, reduce and round attention: one table, of which both APIs are made."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_type_hints

import numpy as np

from service.base.errors import Invalid
from service.base.messages import shortened
from service.model.spec import Signature
from service.selection.derived import DERIVED, SOURCE
from service.selection.indices import Indices, read_indices

Reduction = Literal["mean", "max"]
Dtype = Literal["float32", "float16", "uint8"]

MAX_QUOTED_BYTES = 60  # of a text that an error repeats
MAX_COUNT = 2**31 - 1
WEIGHTS = ("weights", "encoder_weights", "cross_weights", "vision_weights")
ATTENTION = (*WEIGHTS, "scores")
SELECTED = (*ATTENTION, *DERIVED)
QUERY_VECTORS = ("query", "encoder_query", "cross_query", "vision_query", "head_query")
KEY_VECTORS = ("key", "encoder_key", "cross_key", "vision_key")
BY_QUERY = (*SELECTED, *QUERY_VECTORS)
BY_HEAD = (*BY_QUERY, *KEY_VECTORS)


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that an option accepts, and their names in documents and errors."""

    annotation: Any  # in the native API's document
    words: str  # in the Open Inference Protocol's document
    expected: str = ""  # in an error
    accepts: Callable[[Any], bool] = lambda _: True
    least: int | None = None
    most: int | None = None

    def read(self, name: str, value: Any) -> Any:
        """The ``value`` of the option ``name``.

        Raises:
            Invalid: it is of another type, or out of range.
        """
        if not self.accepts(value):
            raise Invalid(f"expected {self.expected}, got {_quoted(value)}", name)
        return value


def _whole(least: int, most: int | None = None) -> Kind:
    words = f"at least {least}" if most is None else f"from {least} to {most}"
    expected = f"a whole number of {words}" if most is None else f"a whole number {words}"
    allowed = range(least, (MAX_COUNT if most is None else most) + 1)
    return Kind(int, words, expected, lambda value: type(value) is int and value in allowed, least, most)


def _word(annotation: Any) -> Kind:
    """One of the words of a Literal."""
    *others, last = allowed = get_args(annotation)
    words = f"{', '.join(others)} or {last}"
    return Kind(annotation, words, words, lambda value: isinstance(value, str) and value in allowed)


PLACES = Kind(int | list[int] | str, 'an index or text such as "0,3,5:8,-1"')  # indices.py reads them
FLAG = Kind(bool, "true or false", "a boolean", lambda value: isinstance(value, bool))
REDUCTION, COUNT = _word(Reduction), _whole(1)
THRESHOLD = Kind(
    float,
    "at least 0",
    "a number of at least 0",
    lambda value: type(value) in (int, float) and 0 <= value < math.inf,
    least=0,
)


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its values, its description, the outputs that it changes, and its default in the document."""

    kind: Kind
    description: str
    outputs: tuple[str, ...] = ()  # none: it changes how all outputs are written, of any model
    default: Any = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The options of a request; None = not given. Every part of the service that knows options has them from here."""

    layers: Annotated[
        Indices | None, Option(PLACES, "the layers to return, counted from 0 or from the end", BY_HEAD)
    ] = None
    heads: Annotated[Indices | None, Option(PLACES, "the heads to return", BY_HEAD)] = None
    queries: Annotated[Indices | None, Option(PLACES, "the queries whose weights are returned", BY_QUERY)] = None
    average_attn_weights: Annotated[bool | None, Option(FLAG, "reduce_heads mean", SELECTED, False)] = None
    reduce_heads: Annotated[
        Reduction | None, Option(REDUCTION, "the mean or the largest over heads, without their axis", SELECTED)
    ] = None
    reduce_layers: Annotated[
        Reduction | None,
        Option(
            REDUCTION,
            "the same over layers, after the reduction over heads",
            (*ATTENTION, "entropy", "received", "head_statistics"),
        ),
    ] = None
    weights_top_k: Annotated[
        int | None,
        Option(COUNT, "only the k largest weights of each query, as indices and values, largest first", (SOURCE,)),
    ] = None
    weights_dtype: Annotated[
        Dtype | None,
        Option(
            _word(Dtype),
            "type of the weights; uint8 is round(weight / weights_scale), and weights_scale is also returned",
            WEIGHTS,
        ),
    ] = None
    weights_threshold: Annotated[
        float | None,
        Option(THRESHOLD, "weights below it are returned as 0", WEIGHTS),
    ] = None
    weights_pool: Annotated[
        int | None,
        Option(COUNT, "pool queries and keys to at most this many cells each", (*ATTENTION, "rollout")),
    ] = None
    weights_pool_by: Annotated[
        Reduction | None,
        Option(REDUCTION, "a cell is the mean (default) or the max of its weights", (*ATTENTION, "rollout")),
    ] = None
    decimals: Annotated[
        int | None, Option(_whole(0, 7), "round the numbers of the response to this many decimals; null = exact")
    ] = None

    def item_counts(self) -> dict[str, int]:
        """The number of indices and ranges of each option that selects places of an axis."""
        return {name: len(indices.items) for name in AXES if (indices := getattr(self, name)) is not None}

    def given(self) -> list[str]:
        """The names of the given options that change the answer, not only its format."""
        values = {name: getattr(self, name) for name, option in OPTIONS.items() if option.outputs}
        return [name for name, value in values.items() if value is not None and value is not False]


OPTIONS: Mapping[str, Option] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Selection, include_extras=True).items()
}
# An input of a model with one of these names has priority.
AXES = tuple(name for name, option in OPTIONS.items() if option.kind is PLACES)
NO_SELECTION = Selection()


def read_selection(given: Mapping[str, Any]) -> Selection:
    """The options in ``given``, whose names are of ``OPTIONS``; one that is None is not given.

    Raises:
        Invalid: one of another type, or two that contradict each other.
    """
    options = {name: value for name, value in given.items() if value is not None}
    if not options:
        return NO_SELECTION
    values: dict[str, Any] = {
        name: read_indices(name, value) if name in AXES else OPTIONS[name].kind.read(name, value)
        for name, value in options.items()
    }
    if values.get("average_attn_weights") and values.setdefault("reduce_heads", "mean") != "mean":
        raise Invalid("means reduce_heads mean, but reduce_heads is max", "average_attn_weights")
    selection = Selection(**values)
    if selection.weights_pool_by and not selection.weights_pool:
        raise Invalid("requires weights_pool", "weights_pool_by")
    if selection.weights_top_k and selection.weights_pool:
        raise Invalid("cannot be given together with weights_pool", "weights_top_k")
    return selection


def describe_options(block: bool) -> str:
    """The names, values and meanings of the options of a block's attention, or of those that any model has."""
    options = [(name, option) for name, option in OPTIONS.items() if bool(option.outputs) == block]
    return "; ".join(f"{name} ({option.kind.words}): {option.description}" for name, option in options)


def index_input(signature: Signature, name: str, value: Any) -> np.ndarray | None:
    """The tensor of a graph's own input of indices, such as the ``layers`` of an encoder, from a number or text.

    So is that of a list that counts from the end. None where the graph has no such input, or of another ``value``.

    Raises:
        Invalid: it is no such number or text, or an index is out of range.
    """
    tensor, spec = signature.inputs.get(name), signature.spec
    counts_from_end = isinstance(value, list) and any(type(one) is int and one < 0 for one in value)
    if tensor is None or spec is None or not (type(value) is int or isinstance(value, str) or counts_from_end):
        return None
    last = spec.inputs[name].maximum
    if len(tensor.shape) != 1 or tensor.dtype.kind != "i" or not isinstance(last, int):
        return None
    size = last + 1
    places = np.arange(size, dtype=tensor.dtype)[read_indices(name, value).resolve(name, size)]
    return np.ascontiguousarray(places)


def _quoted(value: Any) -> str:
    if isinstance(value, str | int | float):
        return json.dumps(value if not isinstance(value, str) else shortened(value, MAX_QUOTED_BYTES))
    return "a list or an object"
