"""The inputs of a graph that carry out interventions.

At a site the graph computes x * keep + add + |x| * direction, and divides weights by their sum where renormalize is 1.
Interventions at one site are composed to one such change, in their order.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations
from math import prod

import numpy as np

from service.base.errors import Invalid
from service.interventions.request import Intervention, within
from service.interventions.sites import ADD, DIRECTION, KEEP, RENORMALIZE, along_of, axes_of
from service.model.graph import Graph

ITEM_BYTES = 4
PLACE_BYTES = 24  # of a position that an intervention changes: indices of two axes, and what finds contradictions
COPIES = 4  # inputs of a site that may be as large as its activation
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Place:
    """Where an intervention changes a site: indices along each axis of ``shape``; None = all."""

    intervention: Intervention
    shape: Shape
    picks: tuple[np.ndarray | None, ...]
    source_positions: np.ndarray | None  # of the activation that replaces it

    @property
    def selected(self) -> Shape:
        """The shape of what is changed."""
        return tuple(size if pick is None else len(pick) for size, pick in zip(self.shape, self.picks, strict=True))

    @property
    def has_value(self) -> bool:
        """Whether something is added there, or replaces it."""
        return self.intervention.replaces or self.intervention.add is not None

    def meets(self, other: "Place", axes: int | None = None) -> bool:
        """Whether both change the same number, or one with the same indices on the first ``axes``."""
        pairs = [*zip(self._bits, other._bits, strict=True)]
        return all(one & two for one, two in pairs[:axes])

    @cached_property
    def _bits(self) -> list[int]:
        """A number for each axis, which has a bit for each index: many places are compared with each other."""
        found = []
        for pick, size in zip(self.picks, self.shape, strict=True):
            bits = np.zeros(size, np.bool_)
            bits[slice(None) if pick is None else pick] = True
            found.append(int.from_bytes(np.packbits(bits).tobytes()))
        return found


def place_of(intervention: Intervention, shape: Shape, tokens: Sequence[int] | None, source: Shape | None) -> Place:
    """The place of ``intervention`` at a site of ``shape``; that of the other run has the shape ``source``.

    ``tokens`` are the positions of the tokens that it names, if it names any.

    Raises:
        Invalid: an index out of range, no such token, or another number of positions on both sides.
    """
    at, axes = intervention.at, axes_of(intervention.at)
    with within(intervention.field):
        picks = [
            _indices(size)[intervention.selected[axis].resolve(axis, size)] if axis in intervention.selected else None
            for axis, size in zip(axes, shape, strict=True)
        ]
        if tokens is not None:
            picks[axes.index("positions")] = np.asarray(tokens)
        positions = None
        run = intervention.source
        if run is not None and source is not None:
            along = along_of(at)
            if run.positions is not None:
                positions = _indices(source[along])[run.positions.resolve("from.positions", source[along])]
            elif source[along] == shape[along]:
                positions = picks[along]
            count = len(picks[along]) if picks[along] is not None else shape[along]  # type: ignore[arg-type]
            found = source[along] if positions is None else len(positions)
            if found != count:
                raise Invalid(f"expected {count} positions, the number changed, got {found}; select positions", "from")
    return Place(intervention, shape, tuple(picks), positions)


@lru_cache(maxsize=8)
def _indices(size: int) -> np.ndarray:
    """All indices of an axis, of which ranges are views: many interventions in a long text share them."""
    indices = np.arange(size)
    indices.flags.writeable = False
    return indices


@dataclass
class Change:
    """The change of one site; an axis has size 1 if all of its numbers are changed alike."""

    shape: Shape
    places: list[Place] = field(default_factory=list)

    def memory(self) -> int:
        """Bytes of the arrays."""
        return COPIES * ITEM_BYTES * prod(self.shape)

    def check(self) -> None:
        """Check that the changes can be composed in their order; the graph divides by the sum at the end.

        Raises:
            Invalid: an intervention replaces what an earlier one replaces, or changes a row that was renormalized.
        """
        for first, second in combinations(self.places, 2):
            one, two = first.intervention, second.intervention
            if one.replaces and two.replaces and first.meets(second):
                raise Invalid(f"replaces what {one.field} replaces", two.field)
            if one.renormalize and not two.renormalize and first.meets(second, axes=-1):
                raise Invalid(f"changes rows that {one.field} renormalizes: place it before that one", two.field)

    def inputs(self, site: str, values: Mapping[Intervention, np.ndarray], graph: Graph) -> dict[str, np.ndarray]:
        """The inputs of ``graph`` that make the change at ``site``; ``values`` are what is added or replaces."""
        size = self.size([value.shape for value in values.values()])
        arrays = {KEEP: np.ones(size, np.float32), ADD: np.zeros(size, np.float32)}
        if f"{site}_{DIRECTION}" in graph.inputs:
            arrays[DIRECTION] = np.zeros(size, np.float32)
        if f"{site}_{RENORMALIZE}" in graph.inputs:
            arrays[RENORMALIZE] = np.zeros((*size[:-1], 1), np.float32)
        for place in self.places:
            one, index = place.intervention, self._index(place, size)
            linear = [array for kind, array in arrays.items() if kind != RENORMALIZE]
            if one.replaces:
                for array in linear:
                    array[index] = 0
                arrays[ADD][index] = values[one]
            elif one.add is not None:
                arrays[DIRECTION if one.norm_match else ADD][index] += values[one]
            else:
                with np.errstate(over="ignore"):  # an output that is not finite is refused
                    for array in linear:
                        array[index] *= one.scale
                if one.renormalize:
                    arrays[RENORMALIZE][self._index(place, arrays[RENORMALIZE].shape)] = 1
        return {f"{site}_{kind}": array for kind, array in arrays.items()}

    def size(self, values: Collection[Shape]) -> Shape:
        """The shape of the arrays: 1 along an axis of which nothing is selected, and along which no value varies."""
        whole = [place.picks for place in self.places]
        return tuple(
            size
            if axis == 0 or any(picks[axis] is not None for picks in whole) or any(value[axis] > 1 for value in values)
            else 1
            for axis, size in enumerate(self.shape)
        )

    @staticmethod
    def _index(place: Place, size: Shape) -> tuple[np.ndarray, ...]:
        return np.ix_(
            *(
                np.arange(extent) if pick is None or extent == 1 < full else pick
                for pick, extent, full in zip(place.picks, size, place.shape, strict=True)
            )
        )
