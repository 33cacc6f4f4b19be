"""Symbolic dimensions: those that a session declares (``64``, ``m``, ``past + n``, ``1|batch``) against actual shapes.

``1|batch`` is 1 or batch: the axis broadcasts. So does ``1|batch'`` of another input, which may differ in that.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from service.base.errors import Invalid

Dim = int | str
Sizes = dict[str, int]


def symbol(dim: Dim) -> str:
    """The name of a dimension, without the prefix that says that it broadcasts, and without primes."""
    return str(dim).removeprefix("1|").rstrip("'")


def broadcasts(dim: Dim) -> bool:
    return isinstance(dim, str) and dim.startswith("1|")


def format_dims(dims: Sequence[Dim]) -> str:
    """``[batch, heads, m, d_k]``"""
    return f"[{', '.join(symbol(dim) for dim in dims)}]"


def dim_size(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The size of ``dim``, from the size of every symbol in it."""
    return sum(term if isinstance(term, int) else sizes[term] for term in _terms(dim))


@lru_cache
def _terms(dim: Dim) -> tuple[int | str, ...]:
    """The numbers and symbols that ``dim`` is the sum of."""
    return tuple(int(term) if term.isdecimal() else term for term in symbol(dim).split(" + "))


class WrongSize(Invalid, listed=False):
    """One axis of a tensor has another size than the ``expected``; ``dim`` is the name of the axis."""

    def __init__(self, field: str, axis: int, dim: str, shape: Sequence[int], expected: str) -> None:
        self.axis, self.dim, self.shape, self.expected = axis, dim, shape, expected
        named = f"axis {axis} ({dim})" if dim else f"axis {axis}"
        super().__init__(f"expected {named} to be {expected}, got {shape[axis]} (shape {list(shape)})", field)


class DimBinder:
    """Learns the size of each symbol from the first tensor that has it, and checks later tensors against it."""

    def __init__(self, may_be_empty: bool = False) -> None:
        self.may_be_empty = may_be_empty  # a dimension may be 0
        self.sizes: Sizes = {}
        self._bound_by: dict[str, str] = {}

    def bind(self, name: str, declared: Sequence[Dim], shape: Sequence[int]) -> None:
        """Check the ``shape`` of tensor ``name`` against its ``declared`` dimensions.

        Raises:
            Invalid: another rank, an empty axis, or a size that disagrees.
        """
        if len(shape) != len(declared):
            raise Invalid(f"expected shape {format_dims(declared)}, got shape {list(shape)}", name)
        for axis, (dim, got) in enumerate(zip(declared, shape, strict=True)):
            if got == 0 and not self.may_be_empty:
                raise WrongSize(name, axis, _label(dim), shape, "at least 1")
            if not (broadcasts(dim) and got == 1):
                self._bind_one(name, axis, dim, shape)

    def _bind_one(self, name: str, axis: int, dim: Dim, shape: Sequence[int]) -> None:
        known = all(term.isdecimal() or term in self.sizes for term in symbol(dim).split(" + "))
        if known:
            expected = dim_size(dim, self.sizes)
            if shape[axis] != expected:
                source = self._bound_by.get(symbol(dim))
                or_one = "1 or " if broadcasts(dim) and expected != 1 else ""
                whose = f", as in {source}" if source else ""
                raise WrongSize(name, axis, _label(dim), shape, f"{or_one}{expected}{whose}")
        else:
            self.sizes[symbol(dim)] = shape[axis]
            self._bound_by[symbol(dim)] = name

    def multiple(self, multiples: Mapping[str, str]) -> None:
        """Check that each symbol is a multiple of another: query heads of key heads, say.

        Raises:
            Invalid: it is not; the later tensor is named.
        """
        for many, few in multiples.items():
            if self.sizes[many] % self.sizes[few]:
                raise Invalid(
                    f"expected {few} to divide {self.sizes[many]} ({many} of {self._bound_by[many]}), "
                    f"got {self.sizes[few]}",
                    self._bound_by[few],
                )

    def limit(self, limits: Mapping[str, int]) -> None:
        """Check that each dimension, or sum of them, is at most its limit: the positions a model knows, say.

        Raises:
            Invalid: it is longer.
        """
        for dim, limit in limits.items():
            got = dim_size(dim, self.sizes)
            if got > limit:
                source = next(self._bound_by[term] for term in reversed(dim.split(" + ")) if term in self._bound_by)
                raise Invalid(f"expected {dim} to be at most {limit}, got {got}", source)


def _label(dim: Dim) -> str:
    """The name of a dimension; empty where it is a number."""
    return "" if symbol(dim).isdecimal() else symbol(dim)
