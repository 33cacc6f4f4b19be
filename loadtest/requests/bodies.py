"""Request bodies: tensors of the requested shapes, encoded for the requested API."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import orjson

from heed_client.native import encode_tensor
from heed_client.v2 import binary_request, datatype
from loadtest.requests.memory import Store
from loadtest.requests.scenario import RequestSpec, ScenarioError
from loadtest.requests.signature import Input

JSON = {"Content-Type": "application/json"}
DEFAULT_SIZES = {"batch": 1, "heads": 4, "m": 32, "n": 32, "d_k": 32, "d_v": 32, "past": 0}

STORED = ("key", "value")


@dataclass(frozen=True)
class Body:
    path: str
    content: bytes
    headers: dict[str, str]
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of the tensors; empty for a body from a file


def bodies(
    spec: RequestSpec,
    inputs: Sequence[Input],
    rng: np.random.Generator,
    store: Store | None = None,
) -> list[Body]:
    """A body for each combination of the sizes in ``spec``. With ``store``, a memory's id replaces key and value.

    Raises:
        ScenarioError: the model lacks an input or a symbol of ``spec``, or a size is unknown.
    """
    if store and not {*STORED} <= {tensor.name for tensor in inputs}:
        raise ScenarioError(f"{spec.title}: --memory requires a block with the inputs {' and '.join(STORED)}")
    if spec.body:
        try:
            return [Body(spec.path, spec.body.read_bytes(), spec.headers or JSON)]
        except OSError as error:
            raise ScenarioError(str(error)) from error
    if unknown := set(spec.shapes) - {tensor.name for tensor in inputs}:
        raise ScenarioError(
            f"{spec.block} has no input {', '.join(unknown)}; it has {', '.join(tensor.name for tensor in inputs)}"
        )
    used = [tensor for tensor in inputs if tensor.required or tensor.name in spec.shapes]
    if spec.generate:
        used = [] if "text" in spec.parameters else used[:1]  # the decoder begins with its own token
    found = []
    for sizes in _sizes(spec, used):
        tensors, own = {tensor.name: _values(tensor, spec, sizes, rng) for tensor in used}, spec
        if store:
            memory = store({name: tensors.pop(name) for name in STORED})
            own = replace(spec, parameters={**spec.parameters, "memory": memory})
        shapes = {name: array.shape for name, array in tensors.items()}
        found.append(replace(_body(own, tensors), shapes=shapes))
    return found


def _sizes(spec: RequestSpec, inputs: Sequence[Input]) -> Iterator[dict[str, int]]:
    axes = [str(axis) for tensor in inputs if tensor.name not in spec.shapes for axis in tensor.shape]
    symbols = dict.fromkeys(symbol for axis in axes for symbol in axis.split(" + "))
    if unknown := set(spec.sizes) - set(symbols):
        known = ", ".join(symbol for symbol in symbols if not symbol.isdecimal())
        raise ScenarioError(f"{spec.block} has no size {', '.join(sorted(unknown))}; it has {known}")
    choices = [value if isinstance(value, list) else [value] for value in spec.sizes.values()]
    for combination in product(*choices):
        sizes = DEFAULT_SIZES | dict(zip(spec.sizes, combination, strict=True))
        yield {"kv_heads": sizes["heads"]} | sizes


def _values(tensor: Input, spec: RequestSpec, sizes: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    shape = spec.shapes.get(tensor.name) or [_size(tensor, i, sizes) for i in range(len(tensor.shape))]
    if tensor.dtype == "bool":
        return rng.random(shape) < 0.8
    if tensor.dtype.startswith(("float", "bfloat")):
        dtype = "float32" if tensor.dtype == "bfloat16" else tensor.dtype  # numpy lacks bfloat16
        return rng.standard_normal(shape, np.float32).astype(spec.dtype or dtype)
    if tensor.example is None:
        raise ScenarioError(
            f"{tensor.name}: the model has no example of this {tensor.dtype} input; send a body of your own"
        )
    return rng.choice(tensor.example.ravel(), shape).astype(tensor.dtype)


def _size(tensor: Input, i: int, sizes: Mapping[str, int]) -> int:
    axis = tensor.shape[i]
    if isinstance(axis, int):
        return axis
    try:
        return sum(sizes[symbol] for symbol in axis.split(" + "))
    except KeyError:
        if tensor.example is not None:
            return int(tensor.example.shape[i])
        raise ScenarioError(
            f"{tensor.name} has shape {tensor.shape}; set its sizes (--size {axis}=) or its shape (--shape)"
        ) from None


def _body(spec: RequestSpec, tensors: Mapping[str, np.ndarray]) -> Body:
    if spec.generate:
        rows = {name: array[0] for name, array in tensors.items()}
        fields = {"max_new_tokens": spec.generate, "stream": True, "ignore_eos": True, "outputs": spec.outputs}
        return Body(f"/v1/generate/{spec.block}", _dumps({**rows, **fields, **spec.parameters}), JSON | spec.headers)
    if spec.api == "native":
        outputs = {"outputs": spec.outputs} if spec.outputs else {}
        is_binary = spec.encoding == "binary"
        fields = {name: encode_tensor(name, array) if is_binary else array for name, array in tensors.items()}
        content = _dumps({**fields, **spec.parameters, **outputs})
        return Body(f"/v1/attention/{spec.block}", content, JSON | spec.headers)
    path = f"/v2/models/{spec.block}/infer"
    if spec.encoding == "binary":
        headers, pieces = binary_request(tensors, spec.outputs or (), spec.parameters)
        return Body(path, b"".join(pieces), headers | spec.headers)
    document: dict[str, Any] = {
        "inputs": [
            {"name": name, "shape": array.shape, "datatype": datatype(array.dtype), "data": array.ravel()}
            for name, array in tensors.items()
        ]
    }
    if spec.outputs:
        document["outputs"] = [{"name": name} for name in spec.outputs]
    if spec.parameters:
        document["parameters"] = spec.parameters
    return Body(path, _dumps(document), JSON | spec.headers)


def _dumps(document: Any) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
