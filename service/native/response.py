"""Encoding of a native response: the JSON around its arrays, and the arrays as the request wants them."""

from collections.abc import Mapping

import numpy as np

from service.errors import Invalid
from service.native.request import AttentionRequest
from service.tensors.bfloat16 import to_float32
from service.tensors.cast import is_finite


def prepare(request: AttentionRequest, outputs: Mapping[str, np.ndarray]) -> tuple[list[bytes], list[np.ndarray]]:
    """The JSON around the arrays of a response, and these, for ``json_writer.write_json``.

    Raises:
        Invalid: an output that JSON cannot represent.
    """
    frame = request.plan.frame
    arrays: list[np.ndarray] = []
    for place, name in enumerate(request.outputs):
        array, omitted = to_float32(outputs[name]), request.plan.omitted[name]
        _check_finite(name, array)
        if name == "weights" and request.average_attn_weights:
            array, omitted = array.mean(axis=-3, keepdims=True), tuple({*omitted, array.ndim - 3})
        array = array.squeeze(omitted)
        if name == "weights" and request.weights_top_k:
            before, after = frame[place : place + 2]
            inner = before + b'{"indices":', b',"values":', b"}" + after
            frame = [*frame[:place], *inner, *frame[place + 2 :]]
            arrays += _largest(array, request.weights_top_k)
        else:
            arrays.append(array)
    return frame, arrays


def _check_finite(name: str, array: np.ndarray) -> None:
    """JSON has no infinity; only that of ``scores`` and ``lse`` has a meaning, and is written as null."""
    if not (is_finite(array) or (name in ("scores", "lse") and (array < np.inf).all())):
        raise Invalid(f"{name} is not finite: the numbers given overflow {array.dtype}")


def _largest(weights: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the k largest weights of each query, and these, largest first; of equal ones the earlier key."""
    indices = np.argsort(-weights, axis=-1, kind="stable")[..., :k]
    return np.ascontiguousarray(indices), np.ascontiguousarray(np.take_along_axis(weights, indices, axis=-1))
