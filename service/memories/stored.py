"""The inputs of a run that a memory has, in place of ``key`` and ``value``, or of a learned block's past."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from service.base.errors import Conflict, Invalid
from service.codec.json_reader import describe
from service.engine.task import Execute
from service.memories.memory import Description
from service.memories.state import State
from service.memories.streaming import run_size, streaming_graph
from service.model.estimate import RunEstimate, query_count, score_count
from service.model.graph import Arrays, Graph, RunOptions
from service.model.model import Model
from service.tensors.dims import symbol

FIELD, APPEND, AT = FIELDS = ("memory", "memory_append", "memory_at")  # of a request; V2's are parameters
KEY_VALUE, PAST = ("key", "value"), ("past_key", "past_value")
PRESENT = ("present_key", "present_value")
LENGTHS = "nonpad_kv_seqlen"
ORDERED = ("is_causal", "left_window_size", "right_window_size")  # options that depend on the places of keys

MIN_PAIRS = 1 << 12  # pairs of query and key from which stored keys are walked in blocks
MIN_HEAD_PAIRS = 256  # and of each key head of each row: to walk its keys costs 50 microseconds beside the products


@dataclass(frozen=True, slots=True)
class Reference:
    """A memory in a request: its id, whether the request's keys are appended, and the expected length."""

    id: str
    append: bool = False
    at: int | None = None
    at_field: str = AT  # the request's name of ``at``


def read_reference(fields: Mapping[str, Any]) -> Reference | None:
    """The memory that ``fields`` name, if they do.

    Raises:
        Invalid: a field of another type, or one that needs a memory.
    """
    id, append, at = (fields.get(name) for name in FIELDS)
    if id is None:
        for name in (APPEND, AT):
            if fields.get(name) is not None:
                raise Invalid("requires memory", name)
        return None
    if not isinstance(id, str):
        raise Invalid("expected the id of a memory, which POST /v1/memories returns", FIELD)
    if append is not None and not isinstance(append, bool):
        raise Invalid("expected a boolean", APPEND)
    if read_length(at, AT) is not None and not append:
        raise Invalid(f"requires {APPEND}", AT)
    return Reference(id, bool(append), at)


def read_length(value: Any, name: str) -> int | None:
    """The length that the field ``name`` expects of a memory; None where it is not given.

    Raises:
        Invalid: no whole number from 0.
    """
    if value is not None and (type(value) is not int or value < 0):
        raise Invalid(f"expected a whole number of at least 0, got {describe(value)}", name)
    return value


class StoredMemory(Protocol):
    """The methods of ``Memory`` that requests use."""

    @property
    def id(self) -> str: ...
    @property
    def description(self) -> Description: ...
    @property
    def is_verified(self) -> bool: ...
    def state(self) -> State: ...
    def arrays(self) -> tuple[State, np.ndarray, np.ndarray]: ...
    def verify(self) -> None: ...
    def use(self) -> AbstractContextManager[None]: ...


class StoredInputs:
    """The stored inputs of one request to ``model``: those that ``memory`` has now, even if others append meanwhile.

    ``store`` is that of the memory: a run that appends calls its ``appending``.

    Raises:
        Invalid: the memory is not one for this model.
        Conflict: it was made by another version of the model, or has not as many keys as the request expects.
    """

    is_long_to_add = False
    answer_count = 1
    further: Mapping[str, Arrays | bytes] = {}

    def __init__(self, memory: StoredMemory, reference: Reference, model: Model, store: Any) -> None:
        self.memory = memory
        self._store = store
        self._model = model
        description = memory.description
        self._is_past = description.block is not None
        self._appends = reference.append
        self._field = FIELD if reference.at is None else reference.at_field  # that a wrong length is in
        self.names: tuple[str, ...] = PAST if self._is_past else KEY_VALUE
        self._state, key, value = memory.arrays()
        check_model(description, model, self.names)
        if not (self._state.length or self._appends):
            raise Invalid("has no keys yet", FIELD)
        if reference.at is not None and set(self._state.lengths) != {reference.at}:
            raise Conflict(f"expected a memory of length {reference.at}, got {self._state.lengths[0]}", self._field)
        self._has_no_keys = self._is_past and not self._appends and not attends_to_itself(model)
        self._new: Arrays = {}
        self._arrays = tuple(self._shaped(name, array) for name, array in zip(self.names, (key, value), strict=True))

    def estimate(self, inputs: Arrays, outputs: Sequence[str], max_memory_bytes: int) -> RunEstimate:
        """The memory and time of a run for ``outputs``, on the graph that is fastest for stored keys.

        Raises:
            Invalid: a shape or a number does not fit to the model.
            TooMuchMemory: more than ``max_memory_bytes`` bytes.
        """
        model, sizes = self._model, self._model.bind(inputs, may_be_empty=True)
        pairs = score_count(model.signature, sizes)
        fewest = max(MIN_PAIRS, MIN_HEAD_PAIRS * prod(self._arrays[0].shape[:-2]))
        graph = _streaming_graph(model) if pairs >= fewest else None
        if graph is not None and not graph.can_serve(inputs, outputs, pairs, query_count(model.signature, sizes)):
            graph = None
        estimate = model.estimate(inputs, outputs, sizes, max_memory_bytes, graph)
        if graph is None:
            return estimate
        return replace(estimate, size=run_size(*(inputs[name] for name in ("query", *KEY_VALUE))))

    @property
    def is_quick(self) -> bool:
        """Whether the run needs no verification and no lock."""
        return self.memory.is_verified and not self._appends

    def verify(self) -> None:
        """Check the memory's numbers before their first use in this process.

        Raises:
            Gone: they are not those that were stored.
        """
        if not self.memory.is_verified:
            self.memory.verify()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that the run computes for the memory: the block's projections of the new keys and values."""
        return PRESENT if self._is_past and self._appends else ()

    @property
    def cache_key(self) -> object:
        """Equal for memories that make no difference to the plan of a request."""
        layouts = ((array.shape, array.dtype, array.flags.c_contiguous) for array in self._arrays)
        return self._is_past, self._appends, self._state.is_even, *layouts

    def covers(self, given: Sequence[str] | Mapping[str, Any]) -> list[str]:
        """The model's inputs that are not missing beside those ``given``."""
        return [*given, *self.names, *(key_inputs(self._model) if self._has_no_keys else ())]

    def add_to(self, own: Arrays) -> dict[str, np.ndarray]:
        """The request's ``own`` inputs and the stored ones, all in the shapes of the run.

        Where the run appends, its longer arrays are made in ``run``; here they have only their shapes.

        Raises:
            Invalid: an input that the memory has, too, or new keys that do not fit to it.
        """
        self._new = own
        appends_own = self._appends and not self._is_past
        for name in () if appends_own else self.names:
            if name in own:
                raise Invalid("cannot be given together with a memory, which contains it", name)
        inputs = {**own, **(self._extended(own) if appends_own else dict(zip(self.names, self._arrays, strict=True)))}
        if not self._is_past:
            count = own["key"].shape[-2] if appends_own else 0
            inputs = self._with_lengths(inputs, [length + count for length in self._state.lengths])
        elif self._has_no_keys:
            inputs |= self._empty(own)
        return {name: inputs[name] for name in self._model.inputs if name in inputs}

    def _extended(self, own: Arrays) -> dict[str, np.ndarray]:
        """The shapes of keys and values after the append of the request's own."""
        extended = {}
        for name, stored in zip(KEY_VALUE, self._arrays, strict=True):
            new = own.get(name)
            if new is None:
                raise Invalid(f"missing (required with {APPEND})", name)
            check_appended(name, new, stored.shape)
            shape = (*stored.shape[:-2], self._state.length + new.shape[-2], stored.shape[-1])
            extended[name] = np.broadcast_to(new.dtype.type(0), shape)
        count = own["key"].shape[-2]
        if own["value"].shape[-2] != count:
            raise Invalid(f"expected as many values as keys, {count}, got {own['value'].shape[-2]}", "value")
        return extended

    def run(
        self, graph: Graph, execute: Execute, inputs: Arrays, outputs: Sequence[str], _options: RunOptions | None
    ) -> dict[str, np.ndarray]:
        """The ``outputs`` that ``execute`` computes from ``inputs`` with ``graph``.

        What is to be appended is appended if the run succeeds.

        Raises:
            Conflict: another request appended meanwhile.
        """
        ready = self._converted if graph.shared is None else dict  # a shared pass reads the files as they are
        if not self._appends:
            return execute(ready(inputs), outputs)
        if self._is_past:
            computed = execute(ready(inputs), outputs)
            check_finite(computed)
            new = [computed[name][..., self._state.length :, :] for name in PRESENT]
            with self._store.appending(self.memory, *new, self._state.lengths, field=self._field):
                return computed
        new = [self._unshaped(self._new[name]) for name in KEY_VALUE]
        with self._store.appending(self.memory, *new, self._state.lengths, field=self._field) as (_, *arrays):
            for name, array in zip(KEY_VALUE, arrays, strict=True):
                inputs = {**inputs, name: self._shaped(name, array)}
            computed = execute(ready(inputs), outputs)
            check_finite(computed)
            return computed

    def _with_lengths(self, inputs: dict[str, np.ndarray], lengths: Sequence[int]) -> dict[str, np.ndarray]:
        """``inputs``, with the lengths of rows that differ; or of all where a new key's place matters."""
        is_even = len(set(lengths)) == 1
        if is_even and not (self._appends and not inputs.keys().isdisjoint(ORDERED)):
            return inputs
        if LENGTHS not in self._model.inputs:
            if is_even:
                return inputs
            raise Invalid(f"has rows of different lengths, but model '{self._model.name}' takes no {LENGTHS}", FIELD)
        if LENGTHS in inputs:
            raise Invalid("cannot be given together with a memory, which has the lengths of its rows", LENGTHS)
        return {**inputs, LENGTHS: np.asarray(lengths, self._model.inputs[LENGTHS].dtype)}

    def _empty(self, own: Arrays) -> dict[str, np.ndarray]:
        """No keys beside the past: arrays of length 0 for the inputs that have new ones."""
        batch = self.memory.description.rows
        arrays = {}
        for name in key_inputs(self._model):
            if name in own:
                raise Invalid(f"cannot be given together with a memory, unless {APPEND} is true", name)
            tensor = self._model.inputs[name]
            shape = [int(dim) if isinstance(dim, int) else batch if dim == "batch" else 0 for dim in tensor.shape]
            arrays[name] = np.zeros(shape, tensor.dtype)
        return arrays

    def _converted(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """``inputs`` with the stored ones as ONNX Runtime takes them: contiguous, in the model's type."""
        converted = dict(inputs)
        for name in self.names:
            converted[name] = np.ascontiguousarray(inputs[name], self._model.inputs[name].dtype)
        return converted

    def _shaped(self, name: str, array: np.ndarray) -> np.ndarray:
        """A stored array in the rank of the model's input: a block without an axis of heads has one head."""
        rank = len(self._model.inputs[name].shape)
        if rank == array.ndim:
            return array
        if rank == 3 and array.ndim == 4 and array.shape[1] == 1:
            return array[:, 0]
        raise Invalid(f"has shape {list(array.shape)}, but model '{self._model.name}' takes {rank} axes", FIELD)

    def _unshaped(self, array: np.ndarray) -> np.ndarray:
        """A new array in the rank of the memory."""
        rank = len(self.memory.description.lead) + 2
        return array if array.ndim == rank else array[:, None]


_streaming_graphs: WeakKeyDictionary[Model, Graph | None] = WeakKeyDictionary()


def _streaming_graph(model: Model) -> Graph | None:
    """The graph that walks stored keys in blocks; None for a model whose scores are not products."""
    if model not in _streaming_graphs:
        _streaming_graphs[model] = None if model.is_on_cuda else streaming_graph(model.signature)
    return _streaming_graphs[model]


def projects(model: Model) -> bool:
    """Whether it outputs its projections of keys and values, and accepts them as its past."""
    learns = model.spec is not None and model.spec.learned > 0
    return learns and {*PAST} <= model.inputs.keys() and {*PRESENT} <= model.outputs.keys()


def check_usable(model: Model, field: str) -> None:
    """Raises Invalid, which names ``field``: the model has no inputs that a memory could be."""
    if not ({*KEY_VALUE} <= model.inputs.keys() or projects(model)):
        raise Invalid(f"model '{model.name}' cannot use memories: it takes neither key and value nor a past", field)


def key_inputs(model: Model) -> list[str]:
    """The required inputs whose rows become keys; of a model that attends to itself these are its queries, too."""
    new = symbol(model.outputs[PRESENT[0]].shape[-2]).split(" + ")[-1]
    return [name for name, tensor in model.inputs.items() if tensor.required and new in map(symbol, tensor.shape)]


def attends_to_itself(model: Model) -> bool:
    """Whether its queries are its keys, too."""
    return symbol(model.outputs["weights"].shape[-2]) in symbol(model.outputs[PRESENT[0]].shape[-2]).split(" + ")


def check_finite(outputs: Arrays) -> None:
    """Raises Invalid where a result overflows: appended keys are never removed."""
    for name in ("output", *PRESENT):
        if name in outputs and not np.isfinite(outputs[name]).all():
            raise Invalid(f"{name} overflows or is NaN; nothing was appended")


def check_appended(name: str, new: np.ndarray, stored: Sequence[int]) -> None:
    """Raises Invalid where new keys or values have other axes than those of shape ``stored`` [*lead, n, d]."""
    *lead, _, depth = stored
    if [*new.shape[:-2], new.shape[-1]] != [*lead, depth]:
        expected = ", ".join(map(str, (*lead, "n", depth)))
        raise Invalid(f"expected shape [{expected}], as stored, got shape {[*new.shape]}", name)


def check_model(description: Description, model: Model, names: Sequence[str]) -> None:
    """Raises Invalid, Conflict: as ``StoredInputs``."""
    if description.block is None:
        if any(name not in model.inputs for name in names):
            raise Invalid(f"model '{model.name}' takes no key and value; store a memory with \"block\" for it", FIELD)
        return
    if description.block != model.name:
        raise Invalid(f"was stored for block '{description.block}', not for '{model.name}'", FIELD)
    if description.version != model.version:
        raise Conflict(
            f"was made by version {description.version} of '{model.name}', which is now version {model.version}",
            FIELD,
        )
