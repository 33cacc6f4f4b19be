"""Encoding of a native response: the JSON around its arrays, and the arrays as the request wants them."""

from collections.abc import Mapping, Sequence

import numpy as np
import orjson

from service.base.errors import Invalid
from service.native.request import AttentionRequest
from service.selection.answer import SCALES
from service.tensors.bfloat16 import to_float32
from service.tensors.cast import has_meaning


def build_response(
    request: AttentionRequest, outputs: Mapping[str, np.ndarray], tokens: Sequence[bytes], is_inner: bool = False
) -> tuple[list[bytes], list[np.ndarray | bytes]]:
    """The JSON around the arrays of a response, or of an object in one, and these, for ``json_writer.write_json``.

    ``tokens`` are further fields, before the outputs, as JSON without braces, in pieces.

    Raises:
        Invalid: an output that JSON cannot represent.
    """
    arrays: list[np.ndarray | bytes] = []
    for name, omitted in request.plan.omitted.items():
        array = to_float32(outputs[name])
        if not has_meaning(name, array):
            raise Invalid(f"{name} is not finite: the inputs overflow {array.dtype}")
        if name in SCALES:  # a single number
            arrays.append(orjson.dumps(array[0], option=orjson.OPT_SERIALIZE_NUMPY))
        else:
            arrays.append(array.squeeze(omitted))
    frame = request.plan.frame
    if tokens or is_inner:
        block = b'{"block":%b' % orjson.dumps(request.task.model.name)
        start, rest = b"{" if is_inner else block + b",", frame[0].removeprefix(block)
        first = [start, *[b""] * (len(tokens) - 1), rest] if tokens else [start + rest.removeprefix(b",")]
        frame, arrays = [*first, *frame[1:]], [*tokens, *arrays]
    return frame, arrays


def with_field(frame: list[bytes], name: str, inner: Sequence[bytes]) -> list[bytes]:
    """The JSON of an object, in pieces around its arrays, with a further field ``name``, whose pieces are ``inner``."""
    *before, last = frame
    first, *rest = inner
    pieces = [*before, b'%b,"%b":%b' % (last.removesuffix(b"}"), name.encode(), first), *rest]
    pieces[-1] += b"}"
    return pieces
