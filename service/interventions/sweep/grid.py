"""The grid of a sweep: its axes are some of those along which the intervention selects."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from service.interventions.changes import Change, Place
from service.interventions.sites import axes_of
from service.model.graph import Graph

LAYERS = 0  # the axis of layers in an activation


@dataclass(frozen=True)
class Grid:
    """The cells of ``place``, which has one for each index of the ``axes``."""

    place: Place
    axes: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of indices on each axis."""
        return tuple(self.place.selected[axis] for axis in self._numbers)

    @property
    def count(self) -> int:
        """The number of cells."""
        return prod(self.shape)

    def indices(self) -> dict[str, list[int]]:
        """The indices on each axis of the activation, by its name."""
        return {name: self._picked(axis).tolist() for name, axis in zip(self.axes, self._numbers, strict=True)}

    def cells_of_layers(self) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        """The layers that cells change, and these cells, those of the same layers together: [cells, axes]."""
        cells = np.indices(self.shape).reshape(len(self.shape), self.count).T
        layers = self._picked(LAYERS).tolist()
        if LAYERS not in self._numbers:
            yield tuple(sorted(layers)), cells
            return
        axis = self._numbers.index(LAYERS)
        for place, layer in enumerate(layers):
            yield (layer,), cells[cells[:, axis] == place]

    def inputs(
        self, cells: np.ndarray, value: np.ndarray | None, graph: Graph, layer: int | None
    ) -> dict[str, np.ndarray]:
        """The inputs of a run of ``graph`` that has a row for each of ``cells``, of one ``layer``, or of all for None.

        ``value`` is what is added at the place, or replaces it there.
        """
        rows = [self._row(cell, value, graph, layer) for cell in cells]
        return {name: np.concatenate([row[name] for row in rows], axis=1) for name in rows[0]}

    def _row(
        self, cell: np.ndarray, value: np.ndarray | None, graph: Graph, layer: int | None
    ) -> dict[str, np.ndarray]:
        place, one = self.place, self.place.intervention
        chosen: dict[int, int] = dict(zip(self._numbers, cell.tolist(), strict=True))
        if layer is not None:
            chosen[LAYERS] = self._picked(LAYERS).tolist().index(layer)
        picks = [
            self._picked(axis)[[chosen[axis]]] if axis in chosen else pick for axis, pick in enumerate(place.picks)
        ]
        if value is not None:
            for axis, k in chosen.items():
                if value.shape[axis] > 1:
                    value = value.take([k], axis)
        shape = place.shape
        if layer is not None:
            picks[LAYERS], shape = np.array([0]), (1, *shape[1:])
        values = {} if value is None else {one: value}
        return Change(shape, [replace(place, shape=shape, picks=tuple(picks))]).inputs(one.at, values, graph)

    @cached_property
    def _numbers(self) -> list[int]:
        """The places of the axes in the activation."""
        names = axes_of(self.place.intervention.at)
        return [names.index(name) for name in self.axes]

    def _picked(self, axis: int) -> np.ndarray:
        pick = self.place.picks[axis]
        return np.arange(self.place.shape[axis]) if pick is None else pick


def grid_axes(at: str) -> tuple[str, ...]:
    """The axes of a site that a grid may have."""
    return tuple(name for name in axes_of(at) if name not in ("batch", "width"))
