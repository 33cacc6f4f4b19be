"""Symbolic dimensions: what a session declares (``64``, ``m``, ``past + n``, ``1|batch``) against actual shapes.

``1|batch`` is 1 or batch: the axis broadcasts. So does ``1|batch'`` of another input, which may differ in that.
"""

from collections.abc import Mapping, Sequence

from service.errors import Invalid

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
    return sum(int(term) if term.isdecimal() else sizes[term] for term in symbol(dim).split(" + "))


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
            raise Invalid(f"expected {len(declared)} dimensions {format_dims(declared)}, got {list(shape)}", name)
        for axis, (dim, got) in enumerate(zip(declared, shape, strict=True)):
            if got == 0 and not self.may_be_empty:
                raise Invalid(f"{symbol(dim)} is empty; every dimension is at least 1", name)
            self._bind_one(name, axis - len(shape), dim, got)

    def _bind_one(self, name: str, axis: int, dim: Dim, got: int) -> None:
        if broadcasts(dim) and got == 1:
            return
        known = all(term.isdecimal() or term in self.sizes for term in symbol(dim).split(" + "))
        if known:
            expected = dim_size(dim, self.sizes)
            if got != expected:
                source = self._bound_by.get(symbol(dim))
                whose = f" of {source}" if source else ""
                what = f" ({symbol(dim)}{whose})" if source or not symbol(dim).isdecimal() else ""
                or_one = "1 or " if broadcasts(dim) and expected != 1 else ""
                raise Invalid(f"expected {_axis(axis)} {or_one}{expected}{what}, got {got}", name)
        else:
            self.sizes[symbol(dim)] = got
            self._bound_by[symbol(dim)] = name

    def multiple(self, multiples: Mapping[str, str]) -> None:
        """Check that each symbol is a multiple of another: query heads of key heads, say.

        Raises:
            Invalid: it is not; the later tensor is named.
        """
        for many, few in multiples.items():
            if self.sizes[many] % self.sizes[few]:
                raise Invalid(
                    f"expected {few} that divides {self.sizes[many]} ({many} of {self._bound_by[many]}), "
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
                raise Invalid(f"expected {dim} of at most {limit}, got {got}", source)


def _axis(axis: int) -> str:
    return {-1: "last", -2: "second-last", -3: "third-last", -4: "fourth-last"}.get(axis, str(axis)) + " dimension"
