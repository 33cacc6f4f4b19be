"""Decoding of uploads to memories: keys and values, or inputs of a block whose projections are stored."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from service.base.aliases import field_hint
from service.base.errors import Invalid, Malformed
from service.base.messages import counted
from service.codec.json_parser import JsonObject, parse_object
from service.codec.json_reader import JsonReader, describe
from service.codec.json_slices import LongList, LongText
from service.codec.long_tensor import LongTensor
from service.engine.task import InferenceTask
from service.http.body import Body
from service.memories.memory import MAX_ROWS
from service.memories.stored import (
    KEY_VALUE,
    LENGTHS,
    PRESENT,
    StoredInputs,
    StoredMemory,
    attends_to_itself,
    check_usable,
    key_inputs,
    projects,
    read_length,
)
from service.model.model import Model
from service.native.leading_axes import LeadingAxes
from service.repository.repository import Repository
from service.tensors.cast import cast, check_shape, from_bytes
from service.tensors.dims import symbol
from service.tensors.spec import TensorSpec

DTYPES = ("float32", "float16")
BINARY_FIELDS = ("shape", "dtype", "binary_data_size")
CREATE_FIELDS, APPEND_FIELDS = ("block", "dtype", "ttl_seconds"), ("at",)
MAX_TTL_S = 10 * 365 * 86400
RANK = 4  # batch, heads, keys, depth


@dataclass(frozen=True, slots=True)
class Upload:
    """The fields of a request that stores or appends, and its tensors, of which long ones are still to be read."""

    model: Model | None  # whose projections are stored
    dtype: np.dtype
    tensors: Mapping[str, np.ndarray | LongTensor]
    ttl_seconds: float | None = None
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Keys [*lead, n, d_k] and values [*lead, n, d_v] to store; of row i of the batch the first ``counts[i]``."""

    key: np.ndarray
    value: np.ndarray
    batch_axis: int
    counts: tuple[int, ...]


def parse(
    content: bytes,
    parts: Sequence[LongText | LongList],
    attached: Body,
    repository: Repository,
    memory: StoredMemory | None,
) -> Upload:
    """The fields of a request that stores, or appends to ``memory``; ``attached`` are the bytes behind its JSON.

    Raises:
        Malformed, Invalid: it is not JSON, or a field is unknown, missing or wrong.
        NotFound: there is no such block.
    """
    json = parse_object(content, parts)
    with np.errstate(over="ignore"):
        reader = JsonReader(parts)
        block = reader.part(json.get("block")) if memory is None else memory.description.block
        model = None if block is None else _model(block, repository)
        dtype = _dtype(reader.part(json.get("dtype"))) if memory is None else np.dtype(memory.description.dtype)
        specs = _plain_specs(dtype) if model is None else {name: model.inputs[name] for name in key_inputs(model)}
        allowed = (*specs, *(CREATE_FIELDS if memory is None else APPEND_FIELDS))
        names = dict.fromkeys(json)
        for name in names:
            if name not in allowed:
                hint = field_hint(name, allowed) or f"; expected {', '.join(allowed)}"
                raise Malformed(f"unknown field{hint}", name)
        fields = {name: reader.part(json[name]) for name in names}  # each look-up looks through all fields
        binary = BinaryTensors(attached)
        given = [name for name in fields if name in specs and fields[name] is not None]
        tensors = {name: _tensor(specs[name], fields[name], reader, binary) for name in given}
        for name, spec in specs.items():
            if spec.required and name not in tensors:
                raise Invalid("missing (required)", name)
        seconds, length = _ttl(fields.get("ttl_seconds")), read_length(fields.get("at"), "at")
        binary.finish()
        reader.finish(content)
        return Upload(model, dtype, tensors, seconds, length)


class BinaryTensors:
    """The tensors behind a request's JSON, in the order in which it names them."""

    def __init__(self, attached: Body) -> None:
        self._rest = memoryview(attached)

    def take(self, spec: TensorSpec, element: JsonObject, reader: JsonReader) -> np.ndarray:
        """The tensor of ``{"shape": ..., "dtype": ..., "binary_data_size": bytes}``.

        Raises:
            Malformed: there are fewer bytes.
            Invalid: the shape or the type does not fit.
        """
        for name in element:
            if name not in BINARY_FIELDS:
                raise Malformed(
                    f"unknown field {describe(name)} of a tensor; expected {', '.join(BINARY_FIELDS)}", spec.name
                )
        size, dtype = reader.part(element["binary_data_size"]), reader.part(element.get("dtype", "float32"))
        if type(size) is not int or not 0 <= size <= len(self._rest):
            left = len(self._rest)
            raise Malformed(f"expected binary_data_size of at most {left} bytes, got {describe(size)}", spec.name)
        if dtype not in DTYPES:
            raise Invalid(f"expected dtype to be one of {', '.join(DTYPES)}, got {describe(dtype)}", spec.name)
        shape = reader.integers(spec.name, element.get("shape"))
        content, self._rest = self._rest[:size], self._rest[size:]
        numbers = np.require(from_bytes(spec.name, dtype, content), requirements="A")  # copied only if not aligned
        array = check_shape(spec.name, numbers, shape)
        return cast(spec.name, array, spec.dtype)

    def finish(self) -> None:
        """Raises Malformed where bytes are left."""
        if self._rest:
            raise Malformed(f"expected no more bytes after the last tensor, got {len(self._rest)}")


def plain_rows(tensors: Mapping[str, np.ndarray]) -> Rows:
    """The rows of ``key`` and ``value`` as they are sent: [batch, kv_heads, n, d], where leading axes may be omitted.

    Raises:
        Invalid: their shapes do not fit together.
    """
    key, value = (tensors[name] for name in KEY_VALUE)
    for name, array in zip(KEY_VALUE, (key, value), strict=True):
        if not 2 <= array.ndim <= RANK:
            raise Invalid(
                f"expected shape [batch, kv_heads, n, d], or its last 2 or 3, got shape {[*array.shape]}", name
            )
        if not array.size:
            raise Invalid(f"empty; every axis must have at least one element, got shape {[*array.shape]}", name)
    if value.shape[:-1] != key.shape[:-1]:
        lead = ", ".join(map(str, key.shape[:-1]))
        raise Invalid(f"expected shape [{lead}, d_v], as in key, got shape {[*value.shape]}", "value")
    shape = {2: (1, 1, *key.shape[:1]), 3: (key.shape[0], 1, key.shape[1])}.get(key.ndim, key.shape[:3])
    _check_rows(shape[0], "key")
    counts = _counts(tensors.get(LENGTHS), shape)
    return Rows(key.reshape(*shape, -1), value.reshape(*shape, -1), 0, counts)


def projection_task(
    model: Model,
    tensors: Mapping[str, np.ndarray],
    max_memory_bytes: int,
    deadline: int | None,
    stored: StoredInputs | None = None,
) -> InferenceTask:
    """The run whose outputs ``present_key`` and ``present_value`` are stored, or appended to the memory of ``stored``.

    Queries make no difference to them: a block that does not attend to itself gets one, of zeros.

    Raises:
        Invalid: a tensor does not fit to the block, or to the stored keys.
        TooMuchMemory: the run needs more than ``max_memory_bytes`` bytes.
    """
    first = next(name for name in model.inputs if name in tensors)
    axes = LeadingAxes(model, first, tensors[first])
    inputs = {name: axes.expand(model.inputs[name], array) for name, array in tensors.items()}
    _check_rows(inputs[first].shape[0], first)
    if not attends_to_itself(model):
        batch = len(inputs[first])
        for name, spec in model.inputs.items():
            if spec.required and name not in inputs:
                shape = [{"batch": batch}.get(symbol(dim), 1) if isinstance(dim, str) else dim for dim in spec.shape]
                inputs[name] = np.zeros(shape, spec.dtype)
    inputs = {name: inputs[name] for name in model.inputs if name in inputs}
    if stored is not None:
        inputs = stored.add_to(inputs)
    estimate = model.estimate(inputs, PRESENT, model.bind(inputs), max_memory_bytes)
    rows = estimate.sizes.get("batch", 1)
    return InferenceTask(model, estimate, inputs, PRESENT, rows, deadline=deadline, stored=stored)


def projected_rows(model: Model, outputs: Mapping[str, np.ndarray]) -> Rows:
    """The rows that a projection's ``outputs`` are."""
    key, value = (outputs[name] for name in PRESENT)
    axis = [symbol(dim) for dim in model.outputs[PRESENT[0]].shape].index("batch")
    return Rows(key, value, axis, (key.shape[-2],) * key.shape[axis])


def content_hash(key: np.ndarray, value: np.ndarray, counts: tuple[int, ...], model: Model | None) -> str:
    """SHA-256 of the contiguous arrays that are stored, as hexadecimal digits.

    It is that of a line of JSON (block and version, or null; dtype; the shapes of key and value; the counts),
    followed by the bytes of both, little-endian.
    """
    block = [model.name, model.version] if model else None
    head = orjson.dumps([block, str(key.dtype), key.shape, value.shape, counts], option=orjson.OPT_APPEND_NEWLINE)
    digest = hashlib.sha256(head)
    for array in (key, value):
        digest.update(array.data.cast("B"))
    return digest.hexdigest()


def _tensor(spec: TensorSpec, element: Any, reader: JsonReader, binary: BinaryTensors) -> np.ndarray | LongTensor:
    if isinstance(element, JsonObject) and "binary_data_size" in element:
        return binary.take(spec, element, reader)
    return reader.tensor(spec, element)


def _plain_specs(dtype: np.dtype) -> dict[str, TensorSpec]:
    axes = ("batch", "kv_heads", "n")
    specs = [
        TensorSpec("key", dtype, (*axes, "d_k"), required=True),
        TensorSpec("value", dtype, (*axes, "d_v"), required=True),
        TensorSpec(LENGTHS, np.dtype(np.int64), ("batch",), required=False),
    ]
    return {spec.name: spec for spec in specs}


def _model(name: Any, repository: Repository) -> Model:
    if not isinstance(name, str):
        raise Invalid("expected the name of a block", "block")
    model = repository.block(name, "block")
    check_usable(model, "block")
    if not projects(model):
        raise Invalid(f"'{name}' does not project keys and values: leave block out, and send key and value", "block")
    return model


def _check_rows(rows: int, name: str) -> None:
    if rows > MAX_ROWS:
        raise Invalid(f"expected at most {MAX_ROWS} rows, got {rows}; store several memories", name)


def _counts(lengths: np.ndarray | None, shape: Sequence[int]) -> tuple[int, ...]:
    batch, _, n = shape
    if lengths is None:
        return (n,) * batch
    counts = tuple(lengths.reshape(-1)[: batch + 1].tolist())  # one too many is enough to refuse them
    if len(counts) != batch or not all(0 <= count <= n for count in counts):
        raise Invalid(f"expected {counted(batch, 'number')} from 0 to {n}, got {[*counts[:8]]}", LENGTHS)
    return counts


def _dtype(name: Any) -> np.dtype:
    if name is not None and name not in DTYPES:
        raise Invalid(f"expected one of {', '.join(DTYPES)}, got {describe(name)}", "dtype")
    return np.dtype(name or DTYPES[0])


def _ttl(seconds: Any) -> float | None:
    if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds <= MAX_TTL_S):
        raise Invalid(
            f"expected a number of seconds above 0, at most {MAX_TTL_S}, got {describe(seconds)}", "ttl_seconds"
        )
    return seconds  # type: ignore[no-any-return]
