"""Dimensions by name: what a session declares (``64``, ``m``, ``past + n``, ``1|batch``) against what has come.

``1|batch`` is 1 or batch: the axis broadcasts.
"""

from collections.abc import Mapping, Sequence

from service.errors import Invalid

Dim = int | str
Sizes = dict[str, int]


def symbol(dim: Dim) -> str:
    """The name of a dimension, without the note that it broadcasts."""
    return str(dim).removeprefix("1|")


def broadcasts(dim: Dim) -> bool:
    return isinstance(dim, str) and dim.startswith("1|")


def written(dims: Sequence[Dim]) -> str:
    """``[batch, heads, m, d_k]``"""
    return f"[{', '.join(symbol(dim) for dim in dims)}]"


def length(dim: Dim, sizes: Mapping[str, int]) -> int:
    """How long ``dim`` is, where ``sizes`` names every symbol in it."""
    return sum(int(term) if term.isdecimal() else sizes[term] for term in symbol(dim).split(" + "))


class Binder:
    """Learns the size of each symbol from the first tensor that has it, and holds the later ones to it."""

    def __init__(self) -> None:
        self.sizes: Sizes = {}
        self._said_by: dict[str, str] = {}

    def bind(self, name: str, declared: Sequence[Dim], shape: Sequence[int]) -> None:
        """Hold tensor ``name`` of ``shape`` against its ``declared`` dimensions.

        Raises:
            Invalid: another rank, an empty axis, or a size that disagrees.
        """
        if len(shape) != len(declared):
            raise Invalid(f"expected {len(declared)} dimensions {written(declared)}, got {list(shape)}", name)
        for axis, (dim, got) in enumerate(zip(declared, shape, strict=True)):
            if got == 0:
                raise Invalid(f"{symbol(dim)} is empty; every dimension is at least 1", name)
            self._bind_one(name, axis - len(shape), dim, got)

    def _bind_one(self, name: str, axis: int, dim: Dim, got: int) -> None:
        if broadcasts(dim) and got == 1:
            return
        known = all(term.isdecimal() or term in self.sizes for term in symbol(dim).split(" + "))
        if known:
            expected = length(dim, self.sizes)
            if got != expected:
                whose = self._said_by.get(symbol(dim))
                of = f" ({symbol(dim)} of {whose})" if whose else "" if symbol(dim).isdecimal() else f" ({symbol(dim)})"
                or_one = "1 or " if broadcasts(dim) and expected != 1 else ""
                raise Invalid(f"expected {_axis(axis)} {or_one}{expected}{of}, got {got}", name)
        else:
            self.sizes[symbol(dim)] = got
            self._said_by[symbol(dim)] = name

    def multiple(self, of: Mapping[str, str]) -> None:
        """Hold each symbol to be a multiple of another: query heads of key heads, say.

        Raises:
            Invalid: it is not; the later tensor is named.
        """
        for many, few in of.items():
            if self.sizes[many] % self.sizes[few]:
                raise Invalid(
                    f"expected {few} that divides {self.sizes[many]} ({many} of {self._said_by[many]}), "
                    f"got {self.sizes[few]}",
                    self._said_by[few],
                )

    def limit(self, most: Mapping[str, int]) -> None:
        """Hold each dimension, or sum of them, to be at most its limit: the positions a model knows, say.

        Raises:
            Invalid: it is longer.
        """
        for dim, limit in most.items():
            got = length(dim, self.sizes)
            if got > limit:
                whose = next(self._said_by[term] for term in reversed(dim.split(" + ")) if term in self._said_by)
                raise Invalid(f"expected {dim} of at most {limit}, got {got}", whose)


def _axis(axis: int) -> str:
    return {-1: "last", -2: "second-last", -3: "third-last", -4: "fourth-last"}.get(axis, str(axis)) + " dimension"
