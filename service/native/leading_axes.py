"""The axes of batch, heads and queries may be omitted: a query is [batch, heads, m, d_k], [batch, m, d_k], [m, d_k], or
[d_k], one vector.

Heads are omitted first, then batch, then queries, unless the queries are the keys, too. Every other tensor omits the
same axes, and so do the outputs. In a block of one head the query has no axis for heads; its weights and its past omit
theirs with the batch.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from service.base.errors import Invalid
from service.model.checks import OutOfRange
from service.model.model import Model
from service.tensors.dims import Dim, WrongSize, broadcasts, format_dims, symbol
from service.tensors.spec import TensorSpec

LEADING = ("heads", "batch")  # in the order in which they are omitted
OMITTED_WITH = {"kv_heads": "heads"}  # an axis -> another that is omitted with it


class LeadingAxes:
    """The axes that a request omits, by the block's first tensor (the query), which is ``array``."""

    def __init__(self, model: Model, first: str, array: np.ndarray) -> None:
        declared = model.inputs[first].shape
        leading = [dim for dim in LEADING if dim in declared]
        if "m" in declared and "m" not in symbol(model.outputs["weights"].shape[-1]).split(" + "):
            leading.append("m")
        omitted = len(declared) - array.ndim
        if not 0 <= omitted <= len(leading):
            least = len(declared) - len(leading)
            fewer = f", or its last {least}{f' to {len(declared) - 1}' if len(leading) > 1 else ''}" if leading else ""
            raise Invalid(f"expected shape {format_dims(declared)}{fewer}, got shape {list(array.shape)}", first)
        self._first = f"{first} of shape {list(array.shape)}"
        self._omitted = set(leading[:omitted])
        self._one_head = symbol(model.outputs["weights"].shape[-3]) == "1"

    def expand(self, spec: TensorSpec, array: np.ndarray) -> np.ndarray:
        """``array`` with an axis of length 1 for each omitted one; the axis of one head may be given or not.

        Raises:
            Invalid: its rank is not that of the first tensor.
        """
        kept = self._kept(spec, array)
        missing = len(kept) - array.ndim
        if missing and (missing < 0 or not all(map(broadcasts, spec.shape))):
            expected = f"shape {format_dims([spec.shape[axis] for axis in kept])}" if kept else "a single number"
            raise Invalid(f"expected {expected} for {self._first}, got shape {list(array.shape)}", spec.name)
        sizes = iter((1,) * missing + array.shape)
        return array.reshape([next(sizes) if axis in kept else 1 for axis in range(len(spec.shape))])

    def as_given(self, error: WrongSize | OutOfRange, model: Model, tensors: Mapping[str, np.ndarray]) -> Invalid:
        """``error``, found in an expanded tensor, with the place, or axis and shape, that it has in the request."""
        name = error.field
        if name is None or name not in tensors:  # it is in a memory
            return error
        array = tensors[name]
        kept = self._kept(model.inputs[name], array)
        if isinstance(error, OutOfRange):
            place = [error.place[axis] for axis in kept[len(kept) - array.ndim :]]
            return OutOfRange(name, place, error.got, error.expected)
        axis = kept.index(error.axis) - len(kept) + array.ndim if error.axis in kept else -1
        return error if axis < 0 else WrongSize(name, axis, error.dim, array.shape, error.expected)

    def _kept(self, spec: TensorSpec, array: np.ndarray) -> list[int]:
        """The axes of ``array`` that the request does not omit; one head may be given or not."""
        omitted, head = self.omitted(spec.shape), self._head(spec.shape)
        kept = [axis for axis in range(len(spec.shape)) if axis not in omitted]
        return kept if head is None or array.ndim != len(kept) + 1 else sorted((*kept, head))

    def omitted(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        """The axes of the declared ``shape`` that the request omits."""
        head = self._head(shape)
        return tuple(
            axis
            for axis, dim in enumerate(shape)
            if OMITTED_WITH.get(symbol(dim), symbol(dim)) in self._omitted or axis == head
        )

    def _head(self, shape: Sequence[Dim]) -> int | None:
        """Where ``shape`` has the axis of a block's one head, behind an omitted batch."""
        names = [symbol(dim) for dim in shape]
        if not self._one_head or "batch" not in self._omitted or "batch" not in names:
            return None
        head = names.index("batch") + 1
        return head if names[head : head + 1] == ["1"] else None
