"""Batch and heads may be left out: a query [m, d_k] or [batch, m, d_k] is lifted to what the graph takes, and back.

Heads go first, then batch, so a query of rank 3 is [batch, m, d_k]. Every other tensor leaves out the same axes.
"""

from collections.abc import Sequence

import numpy as np

from service.errors import Invalid
from service.model import Tensor
from service.shape import Dim, broadcasts, symbol, written

LEADING = ("batch", "heads")
TOGETHER = {"kv_heads": "heads"}  # an axis that is left out where another is


class Rank:
    """The axes a request leaves out, read off its first tensor (the query)."""

    def __init__(self, of: Tensor, array: np.ndarray) -> None:
        leading = [dim for dim in of.shape if dim in LEADING]
        left_out = len(of.shape) - array.ndim
        if not 0 <= left_out <= len(leading):
            least = len(of.shape) - len(leading)
            ranks = f"{least} to {len(of.shape)}" if leading else f"{least}"
            raise Invalid(f"expected {ranks} dimensions, {written(of.shape)} or its last, got {array.ndim}", of.name)
        self._first = of.name
        self.left_out = {symbol(dim) for dim in leading[len(leading) - left_out :]}

    def lift(self, of: Tensor, array: np.ndarray) -> np.ndarray:
        """``array`` with an axis of length 1 for each that was left out.

        Raises:
            Invalid: its rank is not that of the first tensor.
        """
        kept = [dim for dim in of.shape if not self._is_out(dim)]
        missing = len(kept) - array.ndim
        if missing and (missing < 0 or not all(map(broadcasts, of.shape))):
            expected = f"{len(kept)} dimensions {written(kept)}" if kept else "a single number"
            raise Invalid(f"expected {expected} beside this {self._first}, got {list(array.shape)}", of.name)
        sizes = iter((1,) * missing + array.shape)
        return array.reshape([1 if self._is_out(dim) else next(sizes) for dim in of.shape])

    def out(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        """The axes of the declared ``shape`` that the request left out."""
        return tuple(axis for axis, dim in enumerate(shape) if self._is_out(dim))

    def _is_out(self, dim: Dim) -> bool:
        name = symbol(dim)
        return TOGETHER.get(name, name) in self.left_out
