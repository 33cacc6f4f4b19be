"""Arrays checked against a block's specification, and the shapes of the outputs that follow from them.

Nothing is checked of a model that Heed did not export: only ONNX Runtime knows what such a graph accepts.
"""

from collections.abc import Sequence

import numpy as np

from service.base.cache import BoundedCache
from service.base.errors import Invalid
from service.base.messages import counted
from service.model.spec import Placeholder, Signature
from service.ort.io_binding import Shapes
from service.ort.session import Arrays
from service.tensors.dims import DimBinder, Sizes, broadcasts, dim_size, symbol
from service.tensors.spec import TensorSpec

TOKENS = "input_ids"


class OutOfRange(Invalid, listed=False):
    """The number ``got`` at ``place`` in a tensor is out of its range, which ``expected`` describes."""

    def __init__(self, field: str, place: Sequence[int], got: object, expected: str) -> None:
        self.place, self.got, self.expected = place, got, expected
        super().__init__(f"expected {expected}, got {got}" + (f" at {[*place]}" if place else ""), field)

    @classmethod
    def first(cls, field: str, array: np.ndarray, wrong: np.ndarray, expected: str) -> "OutOfRange":
        """The error of the first number in ``array`` that is ``wrong``."""
        place = [int(axis) for axis in np.unravel_index(wrong.argmax(), wrong.shape)]
        return cls(field, place, array[tuple(place)], expected)


def bind(signature: Signature, inputs: Arrays, may_be_empty: bool = False) -> Sizes:
    """The size of each symbolic dimension, from ``inputs``, which include all that are required for some outputs.

    A dimension that only omitted inputs have is 1. ``may_be_empty``: a dimension may be 0.

    Raises:
        Invalid: a rank, a size or a number does not fit; an input needs or excludes another.
    """
    spec = signature.spec
    if not spec:  # equal names of dimensions need not mean equal sizes in a foreign graph
        return {}
    binder = DimBinder(may_be_empty)
    given = [tensor for name, tensor in signature.inputs.items() if name in inputs]
    for tensor in (tensor for tensor in given if not _has_sum(tensor)):
        binder.bind(tensor.name, tensor.shape, inputs[tensor.name].shape)
    for dim, size in spec.left_out.items():
        binder.sizes.setdefault(dim, size)
    for tensor in filter(_has_sum, given):  # "past + n", once past and n are known
        binder.bind(tensor.name, tensor.shape, inputs[tensor.name].shape)
    for name in signature.omissible.keys() - inputs.keys():
        for left_out in signature.inputs[name].shape:
            binder.sizes.setdefault(symbol(left_out), 1)
    binder.multiple(spec.multiples)
    binder.limit(spec.limits)
    for name in inputs:
        for other in spec.inputs[name].needs:
            if other not in inputs:
                raise Invalid(f"requires {other}", name)
        for other in spec.inputs[name].excludes:
            if other in inputs:
                raise Invalid(f"cannot be given together with {other}", name)
    check_values(signature, inputs, binder.sizes)
    return binder.sizes


def check_placeholders(name: str, placeholder: Placeholder, ids: np.ndarray, rows: int, field: str = TOKENS) -> None:
    """Raises Invalid: in ``ids`` another number of tokens stands for the ``rows`` of the input ``name``."""
    got, expected = int((ids == placeholder.token).sum()), rows * placeholder.count
    if got == expected:
        return
    stands = f"{placeholder.count} of {placeholder.label} for each row of {name}"
    if placeholder.text:
        stands += f"; of a text one {placeholder.text} becomes as many"
    raise Invalid(f"expected {stands}: {expected} for {counted(rows, 'row')}, got {got}", field)


def omitted(signature: Signature, inputs: Arrays) -> Arrays:
    """Zeros for each required input that is not among ``inputs``, as none of the requested outputs needs it.

    A run of any graph needs all required inputs. ``inputs`` may have others that only this graph has.
    """
    names = signature.omissible.keys() - inputs.keys()
    if not names:
        return {}
    sizes = {
        symbol(dim): size
        for name, tensor in signature.inputs.items()
        if name in inputs
        for dim, size in zip(tensor.shape, inputs[name].shape, strict=True)
        if not (broadcasts(dim) and size == 1)
    }
    tensors = [signature.inputs[name] for name in names]
    ones = {symbol(dim): 1 for tensor in tensors for dim in tensor.shape}
    return {
        tensor.name: np.zeros([dim_size(dim, ones | sizes) for dim in tensor.shape], tensor.dtype) for tensor in tensors
    }


def check_values(signature: Signature, inputs: Arrays, sizes: Sizes) -> None:
    """Check the numbers in ``inputs`` against their ranges, and the number of tokens that stand for rows.

    Their shapes were checked before; ``sizes`` are theirs.

    Raises:
        OutOfRange: a number is out of its range.
        Invalid: another number of tokens stands for the rows of an input than it has.
    """
    for name, spec in signature.ranges:
        array = inputs.get(name)
        if array is None:
            continue
        if spec.minimum is not None and (wrong := array < spec.minimum).any():
            raise OutOfRange.first(name, array, wrong, f"at least {spec.minimum}")
        if spec.maximum is not None:
            maximum = dim_size(spec.maximum, sizes)
            if (wrong := array > maximum).any():
                formula = "" if str(maximum) == str(spec.maximum) else f" ({spec.maximum})"
                raise OutOfRange.first(name, array, wrong, f"at most {maximum}{formula}")
    for name, placeholder in signature.placeholders.items():
        if TOKENS in inputs:
            check_placeholders(name, placeholder, inputs[TOKENS], len(inputs.get(name, ())))


class OutputShapes:
    """The shapes and types of a block's outputs, which follow from those of its inputs; the last ones are cached."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._cache: BoundedCache[Shapes] = BoundedCache()

    def __call__(self, inputs: Arrays, outputs: Sequence[str]) -> Shapes:
        """Raises Invalid as ``bind`` does."""
        key = (*outputs, *((name, array.shape) for name, array in inputs.items()))
        shapes = self._cache.get(key)
        if shapes is None:
            sizes = bind(self._signature, inputs)
            tensors = [self._signature.outputs[name] for name in outputs]
            shapes = {
                tensor.name: (tuple(dim_size(dim, sizes) for dim in tensor.shape), tensor.dtype) for tensor in tensors
            }
            self._cache.put(key, shapes)
        return shapes


def _has_sum(tensor: TensorSpec) -> bool:
    return any(" + " in str(dim) for dim in tensor.shape)
