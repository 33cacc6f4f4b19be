"""A V2 answer: JSON, and behind it the bytes of the outputs that were asked for in binary."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import orjson

from service.bfloat16 import wide
from service.errors import Invalid
from service.json_tensor import is_finite
from service.json_write import PLACE, filled
from service.model import Model
from service.respond import Piece, length_of
from service.turns import Steps
from service.v2 import texts
from service.v2.classification import classify
from service.v2.datatype import BYTES, datatype
from service.v2.decode import Asked
from service.v2.plan import Plan, Wanted

NonFinite = Literal["refuse", "nulls", "tokens"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A V2 answer that can be said: its JSON but for the lists in it, the lists, and what follows it in binary."""

    frame: list[bytes]
    lists: list[np.ndarray | bytes]
    attached: list[Piece]


def prepare(asked: Asked, found: Mapping[str, np.ndarray], model: Model, non_finite: NonFinite) -> Answer:
    """What is to be said of what was ``found``.

    Raises:
        Invalid: what was asked for as JSON cannot be said in JSON.
    """
    plan = asked.plan
    arrays = [
        classify(wanted.name, wide(found[wanted.name]), wanted.classes, model.max_batch_size > 0)
        if wanted.classes
        else found[wanted.name]
        for wanted in plan.outputs
    ]
    attached: list[Piece] = []
    lists: list[np.ndarray | bytes] = []
    for wanted, array in zip(plan.outputs, arrays, strict=True):
        if wanted.binary:
            attached.append(_bytes(array))
        else:
            lists.append(_list(wanted.name, array, non_finite))
    shapes = [array.shape for array in arrays]
    known = plan.frame  # another thread may replace it
    if known is not None and known[0] == shapes:
        frame = known[1]
    else:
        frame = _frame(plan.outputs, arrays, iter(attached), model)
        if not any(
            wanted.binary and array.dtype == BYTES.dtype for wanted, array in zip(plan.outputs, arrays, strict=True)
        ):
            plan.frame = shapes, frame  # nothing in it depends on more than the shapes
    if asked.id is not None:
        frame = [*frame[:-1], b'%b,"id":%b}' % (frame[-1][:-1], asked.id)]
    return Answer(frame, lists, attached)


def encode(answer: Answer) -> Steps[tuple[list[Piece], int | None]]:
    """The body in its pieces, and the length of its JSON where bytes follow it."""
    said = yield from filled(answer.frame, answer.lists)
    if not length_of(answer.attached):
        return [*said], None
    return [*said, *answer.attached], length_of(said)


def _frame(
    wanted: Sequence[Wanted], arrays: Sequence[np.ndarray], attached: Iterator[Piece], model: Model
) -> list[bytes]:
    outputs = []
    for one, array in zip(wanted, arrays, strict=True):
        output: dict[str, Any] = {
            "name": one.name,
            "datatype": datatype(array.dtype).name,
            "shape": array.shape,
        }
        if one.binary:
            output["parameters"] = {"binary_data_size": length_of([next(attached)])}
        else:
            output["data"] = orjson.Fragment(PLACE)
        outputs.append(output)
    answer: dict[str, Any] = {"model_name": model.name, "model_version": str(model.version), "outputs": outputs}
    return orjson.dumps(answer).split(PLACE)


def _bytes(array: np.ndarray) -> Piece:
    return texts.pack(array) if array.dtype == BYTES.dtype else np.ascontiguousarray(array)


def numbers_written(plan: Plan, found: Mapping[str, np.ndarray]) -> int:
    """How many numbers become text; those in binary are only copied."""
    return sum(
        found[wanted.name].size
        for wanted in plan.outputs
        if not wanted.binary or wanted.classes or found[wanted.name].dtype == BYTES.dtype
    )


def _list(name: str, array: np.ndarray, non_finite: NonFinite) -> np.ndarray | bytes:
    flat: np.ndarray = wide(array.reshape(-1))
    if array.dtype == BYTES.dtype:
        return orjson.dumps(flat.tolist())
    if flat.dtype.kind == "f" and non_finite != "nulls" and not is_finite(flat):
        if non_finite == "refuse":
            raise Invalid(f"output '{name}' holds NaN or infinity, which JSON cannot say. {_ask(name)}")
        return json.dumps(flat.tolist()).encode()
    return flat


def _ask(name: str) -> str:
    return f"Please ask for output '{name}' as binary data, with its parameter 'binary_data' or 'binary_data_output'"
