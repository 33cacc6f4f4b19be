"""A V2 response: JSON, and behind it the bytes of the outputs that were requested in binary."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import orjson

from service.base.errors import Invalid
from service.codec.json_writer import PLACEHOLDER
from service.http.response import Piece
from service.model.model import Model
from service.selection.answer import SCALES
from service.tensors.bfloat16 import to_float32
from service.tensors.cast import is_finite
from service.v2.datatypes import BYTES, NAMES
from service.v2.infer.plan import RequestedOutput
from service.v2.infer.request import InferRequest

# The JSON around the arrays of a response, these arrays, and the binary outputs that follow.
ResponseParts: TypeAlias = tuple[list[bytes], list[np.ndarray | bytes], list[Piece]]


def build_response(
    request: InferRequest, arrays: Mapping[str, np.ndarray], packed: Mapping[str, list[bytes]], model: Model
) -> ResponseParts:
    """The response with the output ``arrays``; ``packed`` are those of strings that were requested in binary.

    Raises:
        Invalid: an output requested as JSON that JSON cannot represent.
    """
    plan, shapes = request.plan, []
    lists: list[np.ndarray | bytes] = []
    attached: list[Piece] = []
    for output in plan.outputs:
        array = arrays[output.name]
        shapes.append(array.shape)
        if not output.binary:
            lists.append(_list(output, array))
        elif array.dtype == BYTES:
            attached += packed[output.name]
        else:
            attached.append(np.ascontiguousarray(array))
    last = plan.last_frame  # another thread may replace it
    if last is not None and last[0] == shapes:
        frame = [*last[1]]
    else:
        frame = _frame(plan.outputs, arrays, packed, model)
        if not plan.has_strings:  # else it depends on more than the shapes
            plan.last_frame = shapes, [*frame]
    if request.id is not None:
        frame[-1] = b'%b,"id":%b}' % (frame[-1][:-1], request.id)
    return frame, lists, attached


def _frame(
    outputs: Sequence[RequestedOutput],
    arrays: Mapping[str, np.ndarray],
    packed: Mapping[str, list[bytes]],
    model: Model,
) -> list[bytes]:
    """The JSON around the lists of numbers."""
    entries: list[dict[str, Any]] = []
    for output in outputs:
        array = arrays[output.name]
        entry: dict[str, Any] = {"name": output.name, "datatype": NAMES[array.dtype], "shape": array.shape}
        if output.binary:
            size = sum(map(len, packed[output.name])) if array.dtype == BYTES else array.nbytes
            entry["parameters"] = {"binary_data_size": size}
        else:
            entry["data"] = orjson.Fragment(PLACEHOLDER)
        entries.append(entry)
    response = {"model_name": model.name, "model_version": str(model.version), "outputs": entries}
    return orjson.dumps(response).split(PLACEHOLDER)


def _list(output: RequestedOutput, array: np.ndarray) -> np.ndarray | bytes:
    """The numbers to write as text. orjson writes NaN and infinity as null, which is an error in listed outputs."""
    flat: np.ndarray = to_float32(array.reshape(-1))
    if output.name in SCALES:  # a factor of other numbers is never rounded
        return orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    if flat.dtype.kind == "f" and output.named and not is_finite(flat):
        raise Invalid(
            f"output '{output.name}' contains NaN or infinity, which JSON cannot represent. Please ask for output "
            f"'{output.name}' as binary data, with its parameter 'binary_data'"
        )
    return flat
