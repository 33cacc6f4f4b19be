"""A V2 answer: JSON, and behind it the bytes of the outputs that were asked for in binary."""

import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import orjson

from service.errors import Invalid
from service.model import Model
from service.offload import PER_BYTE_COPIED, PER_NUMBER_WRITTEN
from service.v2 import texts
from service.v2.classification import classify
from service.v2.datatype import BF16, BYTES, datatype
from service.v2.decode import Asked, Wanted

NonFinite = Literal["refuse", "nulls", "tokens"]


def encode(
    asked: Asked, found: Mapping[str, np.ndarray], model: Model, non_finite: NonFinite
) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON where bytes follow it.

    Raises:
        Invalid: what was asked for as JSON cannot be said in JSON.
    """
    outputs = []
    attached: list[Any] = []
    length = 0
    for wanted in asked.outputs:
        array = found[wanted.name]
        if wanted.classes:
            array = classify(wanted.name, array, wanted.classes, model.max_batch_size > 0)
        of = datatype(array.dtype)
        output: dict[str, Any] = {"name": wanted.name, "datatype": of.name, "shape": array.shape}
        if wanted.binary:
            content = texts.pack(array) if of is BYTES else np.ascontiguousarray(array).reshape(-1)
            size = len(content) if isinstance(content, bytes) else content.nbytes
            output["parameters"] = {"binary_data_size": size}
            attached.append(content)
            length += size
        else:
            output["data"] = _data(wanted.name, array, non_finite)
        outputs.append(output)
    answer: dict[str, Any] = {"model_name": model.name, "model_version": str(model.version), "outputs": outputs}
    if asked.id is not None:
        answer["id"] = asked.id
    header = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if not length:
        return header, None
    return b"".join([header, *attached]), len(header)


def cost_of_writing(wanted: Wanted, array: np.ndarray) -> float:
    """Nanoseconds, about: numbers in binary are only copied."""
    if wanted.binary and not wanted.classes and array.dtype != BYTES.dtype:
        return PER_BYTE_COPIED * array.nbytes
    return PER_NUMBER_WRITTEN * array.size


def _data(name: str, array: np.ndarray, non_finite: NonFinite) -> Any:
    flat = array.reshape(-1)
    if array.dtype == BF16.dtype:
        raise Invalid(f"sending BF16 data via JSON is not supported. {_ask(name)}")
    if array.dtype == BYTES.dtype:
        return flat.tolist()
    if array.dtype.kind == "f" and non_finite != "nulls" and not np.isfinite(flat).all():
        if non_finite == "refuse":
            raise Invalid(f"output '{name}' holds NaN or infinity, which JSON cannot say. {_ask(name)}")
        return orjson.Fragment(json.dumps(flat.tolist()))
    return flat


def _ask(name: str) -> str:
    return f"Please ask for output '{name}' as binary data, with its parameter 'binary_data' or 'binary_data_output'"
