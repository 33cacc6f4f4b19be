"""A V2 response: JSON, and behind it the bytes of the outputs that were requested in binary."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from service.codec.json_writer import PLACEHOLDER
from service.errors import Invalid
from service.http.response import Piece, length_of
from service.model.model import Model
from service.selection.answer import SCALES
from service.tensors.bfloat16 import to_float32
from service.tensors.cast import is_finite
from service.v2.datatypes import BYTES, datatype, pack_strings, string_array
from service.v2.infer.plan import RequestedOutput
from service.v2.infer.request import InferRequest


@dataclass(slots=True)
class PreparedResponse:
    """A response ready to be written: the JSON around its arrays, the arrays, and the binary outputs that follow."""

    frame: list[bytes]
    lists: list[np.ndarray | bytes]
    attached: list[Piece]


def build_response(request: InferRequest, arrays: Mapping[str, np.ndarray], model: Model) -> PreparedResponse:
    """The response with the output ``arrays``.

    Raises:
        Invalid: an output requested as JSON that JSON cannot represent.
    """
    outputs = request.plan.outputs
    results: list[np.ndarray] = []
    attached: list[Piece] = []
    lists: list[np.ndarray | bytes] = []
    for output in outputs:
        array = arrays[output.name]
        if output.classes:
            array = classify(output.name, to_float32(array), output.classes, model.max_batch_size > 0)
        results.append(array)
        if output.binary:
            attached.append(pack_strings(array) if array.dtype == BYTES.dtype else np.ascontiguousarray(array))
        else:
            lists.append(_list(output, array))
    last, shapes = request.plan.last_response, [array.shape for array in results]
    known = last.frame  # another thread may replace it
    if known is not None and known[0] == shapes:
        frame = known[1]
    else:
        frame = _frame(outputs, results, iter(attached), model)
        if not any(
            output.binary and array.dtype == BYTES.dtype for output, array in zip(outputs, results, strict=True)
        ):
            last.frame = shapes, frame  # nothing in it depends on more than the shapes
    if request.id is not None:
        frame = [*frame[:-1], b'%b,"id":%b}' % (frame[-1][:-1], request.id)]
    return PreparedResponse(frame, lists, attached)


def classify(name: str, array: np.ndarray, k: int, batched: bool) -> np.ndarray:
    """The classification extension: instead of a tensor its k largest values as ``value:index``, largest first.

    BYTES ``[batch, k]``, or ``[k]`` of a model without a batch axis; all there are where k is more.

    Raises:
        Invalid: the output has no numbers.
    """
    if array.dtype.kind not in "iuf":
        raise Invalid(f"class result not available for output '{name}', which holds no numbers")
    rows = array.reshape(len(array), -1) if batched and len(array) else array.reshape(1, -1)
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :k]
    classes = string_array([f"{row[i]:f}:{i}" for row, best in zip(rows, order, strict=True) for i in best])
    return classes.reshape(order.shape if batched else order.shape[1:])


def _frame(
    outputs: Sequence[RequestedOutput], arrays: Sequence[np.ndarray], attached: Iterator[Piece], model: Model
) -> list[bytes]:
    entries = []
    for output, array in zip(outputs, arrays, strict=True):
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": datatype(array.dtype).name,
            "shape": array.shape,
        }
        if output.binary:
            entry["parameters"] = {"binary_data_size": length_of([next(attached)])}
        else:
            entry["data"] = orjson.Fragment(PLACEHOLDER)
        entries.append(entry)
    response = {"model_name": model.name, "model_version": str(model.version), "outputs": entries}
    return orjson.dumps(response).split(PLACEHOLDER)


def _list(output: RequestedOutput, array: np.ndarray) -> np.ndarray | bytes:
    """The numbers to write as text. orjson writes NaN and infinity as null, which is an error in listed outputs."""
    flat: np.ndarray = to_float32(array.reshape(-1))
    if array.dtype == BYTES.dtype:
        return orjson.dumps(flat.tolist())
    if output.name in SCALES:  # what other numbers are multiplied by is never rounded
        return orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    if flat.dtype.kind == "f" and output.named and not is_finite(flat):
        raise Invalid(
            f"output '{output.name}' holds NaN or infinity, which JSON cannot say. Please ask for output "
            f"'{output.name}' as binary data, with its parameter 'binary_data'"
        )
    return flat
