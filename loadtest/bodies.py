"""Requests as bytes: tensors of the shapes asked for, in the dialect asked for."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import orjson

from loadtest.scenario import Ask, ScenarioError
from loadtest.signature import DATATYPES, Input

JSON = {"Content-Type": "application/json"}
USUAL = {"batch": 1, "heads": 4, "m": 32, "n": 32, "d_k": 32, "d_v": 32, "past": 0}  # sizes where none is said
NAMES = {dtype: datatype for datatype, dtype in DATATYPES.items()}


@dataclass(frozen=True)
class Body:
    path: str
    content: bytes
    headers: dict[str, str]


def bodies(ask: Ask, inputs: Sequence[Input], rng: np.random.Generator) -> list[Body]:
    """A body for each combination of the sizes asked for.

    Raises:
        ScenarioError: an input or a symbol that the model does not have, or whose size is not known.
    """
    if ask.body:
        try:
            return [Body(ask.path, ask.body.read_bytes(), ask.headers or JSON)]
        except OSError as error:
            raise ScenarioError(str(error)) from error
    if unknown := set(ask.shapes) - {of.name for of in inputs}:
        raise ScenarioError(
            f"{ask.block} has no input {', '.join(unknown)}; it has {', '.join(i.name for i in inputs)}"
        )
    used = [of for of in inputs if of.required or of.name in ask.shapes]
    return [_body(ask, {of.name: _values(of, ask, sizes, rng) for of in used}) for sizes in _sizes(ask, used)]


def _sizes(ask: Ask, inputs: Sequence[Input]) -> Iterator[dict[str, int]]:
    symbols = dict.fromkeys(
        symbol for of in inputs if of.name not in ask.shapes for axis in of.shape for symbol in str(axis).split(" + ")
    )
    if unknown := set(ask.sizes) - set(symbols):
        known = ", ".join(each for each in symbols if not each.isdecimal())
        raise ScenarioError(f"{ask.block} has no size {', '.join(sorted(unknown))}; it has {known}")
    several = [value if isinstance(value, list) else [value] for value in ask.sizes.values()]
    for chosen in product(*several):
        sizes = USUAL | dict(zip(ask.sizes, chosen, strict=True))
        yield {"kv_heads": sizes["heads"]} | sizes


def _values(of: Input, ask: Ask, sizes: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    shape = ask.shapes.get(of.name) or [_size(axis, i, of, sizes) for i, axis in enumerate(of.shape)]
    if of.dtype == "bool":
        return rng.random(shape) < 0.8
    if of.dtype.startswith(("float", "bfloat")):
        dtype = "float32" if of.dtype == "bfloat16" else of.dtype  # which numpy does not have
        return rng.standard_normal(shape, np.float32).astype(ask.dtype or dtype)
    if of.example is None:
        raise ScenarioError(f"{of.name}: the server gives no example of its {of.dtype}; send a body of your own")
    return rng.choice(of.example.ravel(), shape).astype(of.dtype)


def _size(axis: str | int, i: int, of: Input, sizes: Mapping[str, int]) -> int:
    if isinstance(axis, int):
        return axis
    try:
        return sum(sizes[symbol] for symbol in axis.split(" + "))
    except KeyError:
        if of.example is not None:
            return int(of.example.shape[i])
        raise ScenarioError(f"{of.name} is {of.shape}: say its sizes (--size {axis}=) or its shape (--shape)") from None


def _body(ask: Ask, tensors: Mapping[str, np.ndarray]) -> Body:
    if ask.face == "v1":
        outputs = {"outputs": ask.outputs} if ask.outputs else {}
        write = _coded if ask.encoding == "binary" else np.asarray
        fields = {name: write(array) for name, array in tensors.items()}
        return Body(f"/v1/attention/{ask.block}", _dumps({**fields, **ask.parameters, **outputs}), JSON | ask.headers)
    path, binary = f"/v2/models/{ask.block}/infer", ask.encoding == "binary"
    document: dict[str, Any] = {
        "inputs": [
            {"name": name, "shape": array.shape, "datatype": NAMES[str(array.dtype)]}
            | ({"parameters": {"binary_data_size": array.nbytes}} if binary else {"data": array.ravel()})
            for name, array in tensors.items()
        ]
    }
    if ask.outputs:
        document["outputs"] = [{"name": name} for name in ask.outputs]
    if ask.parameters or binary:
        document["parameters"] = ask.parameters | ({"binary_data_output": True} if binary else {})
    head = _dumps(document)
    if not binary:
        return Body(path, head, JSON | ask.headers)
    said = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Body(path, head + b"".join(array.tobytes() for array in tensors.values()), said | ask.headers)


def _coded(array: np.ndarray) -> dict[str, Any]:
    text = base64.b64encode(array.tobytes()).decode()
    return {"shape": array.shape, "dtype": str(array.dtype), "base64": text}


def _dumps(document: Any) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
