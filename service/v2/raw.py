"""A raw binary request: the whole body is the model's one input, whose shape follows from its length."""

from math import prod

import numpy as np

from service.errors import Malformed
from service.model import Model
from service.signature import free
from service.v2 import texts
from service.v2.attachment import Attachment
from service.v2.datatype import BYTES, datatype


def raw(body: bytes | memoryview, model: Model) -> dict[str, np.ndarray]:
    """The input, as a batch of one.

    Raises:
        Malformed: the model has several inputs, or one with several free dimensions.
        Invalid: the length fits no shape.
    """
    required = [name for name, of in model.inputs.items() if of.required] or list(model.inputs)
    if len(required) != 1:
        raise Malformed(f"a raw request needs a model with one input; '{model.name}' has {required}")
    (name,) = required
    of = datatype(model.inputs[name].dtype)
    sizes = free(model.inputs[name])
    if model.max_batch_size:
        sizes[0] = 1
    if of is BYTES:
        if any(abs(size) != 1 for size in sizes):
            raise Malformed(f"a raw request of BYTES needs an input of shape [1]; '{name}' has {sizes}")
        return {name: texts.array([texts.text(name, memoryview(body))]).reshape([1] * len(sizes))}
    if sizes.count(-1) > 1:
        raise Malformed(f"a raw request needs an input with at most one free dimension; '{name}' has {sizes}")
    row = of.dtype.itemsize * prod(size for size in sizes if size != -1)
    if -1 in sizes:
        sizes[sizes.index(-1)] = len(body) // row if row else 0
    return {name: Attachment(name, model.name, of, tuple(sizes), 0, len(body), of.dtype).array(body)}
