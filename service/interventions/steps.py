"""Changes of the activations of a sequence that is generated: inputs of the graphs of its steps.

Positions are those of the sequence: of its prompt, and then of the new tokens. Negative ones count from the end of the
prompt. What another run has in place of an activation, and its weights, are of positions of a text: they change the
prompt alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from threading import Lock

import numpy as np

from service.interventions.changes import COPIES, ITEM_BYTES, Change, Place
from service.interventions.request import Intervention, within
from service.interventions.sites import ADD, WEIGHTS, along_of, axes_of
from service.interventions.values import Needs, Runs, Values
from service.model.graph import Arrays, Graph, RunOptions
from service.tensors.dims import Sizes

ENCODER = "encoder_"  # begin of the names of sites whose positions do not grow


@dataclass
class SharedRuns:
    """What other runs have, which is computed once for all sequences of a request."""

    found: Runs | None = None
    lock: Lock = field(default_factory=Lock)


class SequenceChanges:
    """The changes of one sequence by ``values``.

    ``own`` are the inputs of its prompt, a batch of one row; ``positions`` the name of their dimension, and ``end`` the
    most tokens. ``shared`` is that of the request.

    Raises:
        Invalid: an index out of range, a token that is not there, or a tensor of another shape.
        TooMuchMemory: another run needs more than ``max_bytes``.
    """

    def __init__(
        self, values: Values, own: Arrays, positions: str, end: int, shared: SharedRuns, max_bytes: int
    ) -> None:
        self._own, self._shared = own, shared
        prompt = values.model.bind(own)
        whole = {**prompt, positions: end}
        ones = [_counted(one, values, positions, prompt) for one in values.interventions]
        self._values = replace(values, interventions=ones)
        self.needs: Needs = self._values.needs(own, max_bytes)  # before the places in the other runs take memory
        self._places: dict[str, list[Place]] = {}
        for one in ones:
            is_of_prompt = _is_of_prompt(one)
            place = self._values.place(one, own, prompt if is_of_prompt else whole)
            if is_of_prompt and not one.at.startswith(ENCODER):
                place = _in_prompt(place)
            self._places.setdefault(one.at, []).append(place)
        for places in self._places.values():
            Change(places[0].shape, places).check()
        self._found: dict[Intervention, np.ndarray] = {}

    @property
    def kept_bytes(self) -> int:
        """Of what is added, or replaces activations."""
        return ITEM_BYTES * sum(prod(shape) for site in self._places for shape in self._values_of(site))

    def memory(self, new: int, length: int) -> int:
        """Bytes of the inputs of a run of ``new`` tokens that ends with ``length``."""
        numbers = 0
        for site, places in self._places.items():
            shapes = self._values_of(site)
            size = Change(_shape_of(places[0], length - new, length), places).size(shapes)
            if site == WEIGHTS and shapes:  # what is added is made zero for later keys
                size = (*size[:-2], new, length)
            numbers += COPIES * prod(size)
        return ITEM_BYTES * numbers

    def _values_of(self, site: str) -> list[tuple[int, ...]]:
        """The shapes of what is added at ``site``, or replaces it."""
        shapes = (self._values.value_shape(place) for place in self._places[site])
        return [shape for shape in shapes if shape is not None]

    def begin(self, graph: Graph, options: RunOptions | None) -> None:
        """Run the other runs, with as many threads as ``graph``.

        Raises:
            Invalid: an activation of another run is not finite.
            OutOfMemory, NotEnoughMemory, DeviceLost: the device cannot run it now, or has failed.
        """
        values, shared = self._values, self._shared
        with shared.lock:
            if shared.found is None:
                shared.found = replace(values, interventions=[one for one in values.interventions if one.runs]).runs(
                    graph, self._own, options
                )
        runs = values.runs(graph, self._own, options, others=shared.found)
        for place in (place for places in self._places.values() for place in places):
            value = values.value(place, runs, self._own)
            if value is not None:
                self._found[place.intervention] = value

    def release(self) -> None:
        """Free the values, after the last step."""
        self._found = {}

    def of_encoder(self, graph: Graph) -> dict[str, np.ndarray]:
        """The inputs of the encoder's ``graph``."""
        arrays: dict[str, np.ndarray] = {}
        for site, places in self._places.items():
            if site.startswith(ENCODER):
                found = {place.intervention: self._found[place.intervention] for place in places if place.has_value}
                arrays |= Change(places[0].shape, places).inputs(site, found, graph)
        return arrays

    def of_step(self, graph: Graph, start: int, end: int) -> dict[str, np.ndarray]:
        """The inputs of a run of ``graph`` that computes the tokens from ``start`` to ``end``."""
        arrays: dict[str, np.ndarray] = {}
        for site in self._places:
            if site.startswith(ENCODER):
                continue
            parts = [*self._parts(site, start, end)]
            if not parts:
                continue
            change = Change(parts[0][0].shape, [place for place, _ in parts])
            found = {place.intervention: value for place, value in parts if value is not None}
            own = change.inputs(site, found, graph)
            name = f"{site}_{ADD}"
            if site == WEIGHTS and end - start > 1 and own[name].any():
                own[name] = own[name] * np.tri(end - start, end, start, dtype=np.float32)  # a query has no later keys
            arrays |= own
        return arrays

    def _parts(self, site: str, start: int, end: int) -> Iterator[tuple[Place, np.ndarray | None]]:
        """The places between two positions, and their values."""
        along = along_of(site)
        axes = [along, *([along + 1] if site == WEIGHTS else [])]
        for place in self._places[site]:
            picks, value = [*place.picks], self._found.get(place.intervention)
            for axis in axes:
                first = start if axis == along else 0
                picks[axis], value = _between(picks[axis], value, axis, first, end)
            if all(pick is None or len(pick) for pick in picks):
                yield replace(place, shape=_shape_of(place, start, end), picks=tuple(picks)), value


def _between(
    pick: np.ndarray | None, value: np.ndarray | None, axis: int, start: int, end: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The part of a pick along ``axis`` from ``start`` to ``end``, counted from there, and its part of a value."""
    is_alike = value is None or value.shape[axis] == 1
    if pick is None:
        return None, value if value is None or is_alike else value[(slice(None),) * axis + (slice(start, end),)]
    inside = np.flatnonzero((pick >= start) & (pick < end))
    if len(inside) == end - start and is_alike:
        return None, value
    return pick[inside] - start, value if value is None or is_alike else value.take(inside, axis)


def _shape_of(place: Place, start: int, end: int) -> tuple[int, ...]:
    """The shape of its site in a run of the tokens from ``start`` to ``end``."""
    shape, site = [*place.shape], place.intervention.at
    if not site.startswith(ENCODER):
        shape[along_of(site)] = end - start
        if site == WEIGHTS:
            shape[-1] = end
    return tuple(shape)


def _is_of_prompt(one: Intervention) -> bool:
    """Whether it needs what another run has at each position."""
    return one.source is not None or (one.at.endswith(WEIGHTS) and (bool(one.runs) or isinstance(one.replace, str)))


def _in_prompt(place: Place) -> Place:
    """``place`` without the positions of new tokens."""
    along, picks = along_of(place.intervention.at), [*place.picks]
    if picks[along] is None:
        picks[along] = np.arange(place.shape[along])
    return replace(place, picks=tuple(picks))


def _counted(one: Intervention, values: Values, positions: str, prompt: Sizes) -> Intervention:
    """``one`` with negative positions counted from the end of the prompt."""
    dims: Mapping[str, int | str] = dict(zip(axes_of(one.at), values.sites.sites[one.at], strict=True))
    with within(one.field):
        selected = {
            axis: indices.counted_from(axis, prompt[positions]) if dims[axis] == positions else indices
            for axis, indices in one.selected.items()
        }
    return replace(one, selected=selected)
