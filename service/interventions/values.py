"""What interventions add to activations, or put in place of them: numbers that were sent, or what other runs have."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from service.base.errors import Invalid, TooMuchMemory
from service.base.messages import sizes_words
from service.interventions.changes import ITEM_BYTES, PLACE_BYTES, Place, place_of
from service.interventions.request import FIELD, Intervention, OtherRun, within
from service.interventions.sites import DECODER_IDS, RETURNED, WEIGHTS, Sites, along_of, ids_of
from service.model.estimate import RunEstimate
from service.model.feature_graphs import FeatureGraphs
from service.model.graph import Arrays, Graph, RunOptions
from service.model.model import Model
from service.tensors.cast import has_meaning
from service.tensors.dims import Sizes

WHOLE, OUTPUT = "interventions", "interventions_output"  # graphs; OUTPUT has no activations
LENGTHS = "nonpad_kv_seqlen"  # an input of blocks, which models of transformers do not have
LAYERS = "layers"  # an input of blocks, by which a request chooses those of the weights
BATCH = 1  # its axis in an activation


class Results(NamedTuple):
    """Those of a run without changes: its outputs, whose layers the request may choose, and, by site, activations."""

    outputs: Arrays
    activations: Arrays


Runs = Mapping[OtherRun | None, Results]  # of the other runs of a request, and of its own run without changes (None)


class Needs(NamedTuple):
    """Those of several runs, one after the other: multiply-adds, memory meanwhile, and of what is kept of them."""

    size: int
    memory: int
    kept_bytes: int


@dataclass(frozen=True)
class Values:
    """The values of ``interventions``. ``inputs`` are those of the other runs, ``numbers`` what was sent."""

    interventions: Sequence[Intervention]
    inputs: Mapping[OtherRun, dict[str, np.ndarray]]
    numbers: Mapping[str, np.ndarray]
    model: Model
    sites: Sites
    graphs: FeatureGraphs
    max_bytes: int  # of one run
    _words: dict[bytes, dict[str, list[int]]] = field(
        default_factory=dict
    )  # by the ids of a text: places of each token

    @cached_property
    def sizes(self) -> dict[OtherRun, Sizes]:
        """The sizes of the other runs.

        Raises:
            Invalid: inputs that do not fit to the model.
        """
        return {run: self._sizes(run) for run in self.inputs}

    @cached_property
    def has_mean(self) -> bool:
        """Whether the run without changes is needed."""
        return any(isinstance(one.replace, str) for one in self.interventions)

    def estimate(
        self, graph: Graph, own: Arrays, outputs: Collection[str], max_bytes: int, has_own: bool = False
    ) -> RunEstimate:
        """The memory and time of a run of ``graph`` with the inputs ``own``, and of ``runs`` before it.

        With ``has_own`` the run without changes is among these.

        Raises:
            TooMuchMemory: more than ``max_bytes``.
        """
        last = self.estimate_own(graph, own, outputs, max_bytes, self.model.bind(own))
        before = self.needs(own, max_bytes, has_own)
        memory = last.memory + before.memory + before.kept_bytes
        return replace(last, graph=graph, size=last.size + before.size, memory=memory)

    def needs(self, own: Arrays, max_bytes: int, has_own: bool = False) -> Needs:
        """Those of ``runs``.

        Raises:
            TooMuchMemory: one needs more than ``max_bytes``.
        """
        runs = [(self.inputs[run], self.sizes[run]) for run in self.inputs]
        if self.has_mean or has_own:
            runs.append(({**own}, self.model.bind(own)))
        whole = self._known(self.graphs.graph(WHOLE)) if runs else None
        estimates = [self.model.estimate(inputs, [], its, max_bytes, whole) for inputs, its in runs]
        kept = sum(ITEM_BYTES * prod(self.sites.shape(site, its)) for _, its in runs for site in self.sites.sites)
        memory = max((one.memory for one in estimates), default=0)
        return Needs(sum(one.size for one in estimates), memory, kept)

    def estimate_own(
        self, graph: Graph, own: Arrays, outputs: Collection[str], max_bytes: int, sizes: Sizes
    ) -> RunEstimate:
        """The memory and time of a run of ``graph`` alone, of these ``sizes``.

        Raises:
            TooMuchMemory: more than ``max_bytes``.
        """
        return self.model.estimate(own, outputs, sizes, max_bytes, self._known(graph))

    def check_places(self, own: Arrays, sizes: Sizes) -> None:
        """Check that a run of ``sizes`` with the inputs ``own`` is possible, and the other runs, before the places in
        them take memory.

        Raises:
            TooMuchMemory: more than ``max_bytes``.
        """
        for run, inputs in self.inputs.items():
            self.model.estimate(inputs, [], self.sizes[run], self.max_bytes)
        memory = self.model.estimate(own, [], sizes, self.max_bytes).memory
        positions = sum(self.sites.shape(one.at, sizes)[along_of(one.at)] for one in self.interventions)
        check_memory(memory + PLACE_BYTES * positions, self.max_bytes)

    def place(self, one: Intervention, own: Arrays, sizes: Sizes) -> Place:
        """The place of ``one`` in a run of ``sizes`` with the inputs ``own``.

        Raises:
            Invalid: an index out of range, a token that is not there, or a tensor of another shape.
        """
        shape, source = self.sites.shape(one.at, sizes), None
        if one.source is not None:
            source = self.sites.shape(one.at, self.sizes[one.source])
        for run in one.runs:
            keys = self.sites.shape(one.at, self.sizes[run])[-1]
            if one.at.endswith(WEIGHTS) and keys != shape[-1]:
                raise Invalid(f"expected weights to {shape[-1]} keys, got {keys}", run.field)
        place = place_of(one, shape, self._positions(one, own), source)
        for name in ("add", "replace"):
            key = f"{one.field}.{name}"
            if key in self.numbers:
                with within(key):
                    _full(self.numbers[key], place)
        return place

    def runs(
        self,
        graph: Graph,
        own: Arrays,
        options: RunOptions | None,
        outputs: Collection[str] = (),
        of_own: Collection[str] = (),
        others: Runs | None = None,
    ) -> Runs:
        """What other runs have, with ``outputs``, and what the ``own`` one has without changes, with ``of_own``.

        With ``others`` the other runs are not run again.

        Raises:
            Invalid: an activation is not finite.
            OutOfMemory, NotEnoughMemory, DeviceLost: the device cannot run it now, or has failed.
        """
        found: dict[OtherRun | None, Results] = {
            run: others[run] if others else self._run(graph, run, inputs, options, outputs)
            for run, inputs in self.inputs.items()
        }
        if self.has_mean or of_own:
            found[None] = self._run(graph, None, own, options, of_own)
        return found

    def value(self, place: Place, runs: Runs, own: Arrays) -> np.ndarray | None:
        """What is added at ``place``, or replaces it there: [layers, batch, ...]; None if it is scaled."""
        one = place.intervention
        if one.source is not None:
            picks = [*place.picks]
            picks[along_of(one.at)] = place.source_positions
            return _picked(_activation(place, runs[one.source]), picks)
        if isinstance(one.replace, str):
            return self._mean(place, _activation(place, runs[None]), own)
        if one.replace is not None:
            return np.expand_dims(_full(self.numbers[f"{one.field}.replace"], place), BATCH)
        if one.add is None:
            return None
        if one.add.numbers is not None:
            vector = np.expand_dims(_full(self.numbers[f"{one.field}.add"], place), BATCH)
        else:
            vector = self._steering(place, one.add.plus, runs)
            if one.add.minus is not None:
                vector = vector - self._steering(place, one.add.minus, runs)
        if one.norm_match:
            vector = vector.astype(np.float64)  # whose squares do not overflow
            copies = place.shape[-1] / vector.shape[-1]  # of a number that stands for the whole width
            length = np.linalg.norm(vector, axis=-1, keepdims=True) * copies**0.5
            if not length.all():
                raise Invalid("expected a nonzero vector: a zero vector has no direction", f"{one.field}.add")
            vector = vector / length
        with np.errstate(over="ignore"):  # an output that is not finite is refused
            return np.asarray(vector * one.add.scale, np.float32)

    def value_shape(self, place: Place) -> tuple[int, ...] | None:
        """The shape of ``value``."""
        one, along = place.intervention, along_of(place.intervention.at)
        for name in ("add", "replace"):
            if f"{one.field}.{name}" in self.numbers:
                return np.expand_dims(_full(self.numbers[f"{one.field}.{name}"], place), BATCH).shape
        if not place.has_value:
            return None
        return tuple(1 if axis == along and one.source is None else size for axis, size in enumerate(place.selected))

    def _known(self, graph: Graph) -> Graph:
        """``graph`` with the outputs that the model has, for its estimate."""
        return replace(graph, outputs=graph.outputs & self.model.outputs.keys())

    def _sizes(self, run: OtherRun) -> Sizes:
        with within(run.field):
            return self.model.bind(self.inputs[run])

    def _run(
        self, graph: Graph, run: OtherRun | None, inputs: Arrays, options: RunOptions | None, outputs: Collection[str]
    ) -> Results:
        """The ``outputs`` of a run without changes, and its activations, in all layers, at the sites that need them."""
        sites = {
            one.at
            for one in self.interventions
            if (run in one.runs if run is not None else isinstance(one.replace, str))
        }
        of_sites = {site: RETURNED.get(site, site) for site in sorted(sites)}
        whole = self.graphs.beside(graph, WHOLE)

        def results(own: Arrays, names: Iterable[str]) -> Arrays:
            arrays = self.model.run(whole, own, [*dict.fromkeys(names)], options)
            for name, array in arrays.items():
                if not has_meaning(name, array):
                    raise Invalid(f"{name} is not finite: the inputs overflow float32", run.field if run else FIELD)
            return arrays

        if LAYERS in inputs and of_sites:
            all_layers = {name: array for name, array in inputs.items() if name != LAYERS}
            every, found = results(all_layers, of_sites.values()), results(inputs, outputs) if outputs else {}
        else:
            every = found = results(inputs, (*outputs, *of_sites.values()))
        return Results({name: found[name] for name in outputs}, {site: every[name] for site, name in of_sites.items()})

    def _mean(self, place: Place, activation: np.ndarray, own: Arrays) -> np.ndarray:
        """The mean over the positions that are no padding."""
        along = along_of(place.intervention.at)
        shape = [1] * activation.ndim
        shape[BATCH], shape[along] = activation.shape[BATCH], activation.shape[along]
        weights = _mask(place.intervention.at, own, (shape[BATCH], shape[along])).reshape(shape)
        if not weights.any(axis=along).all():
            raise Invalid("there is no mean: a text is all padding", f"{place.intervention.field}.replace")
        mean = (activation * weights).sum(axis=along, keepdims=True) / weights.sum(axis=along, keepdims=True)
        picks = [*place.picks]
        picks[along] = None
        return _picked(mean.astype(np.float32), picks)

    def _steering(self, place: Place, run: OtherRun | None, runs: Runs) -> np.ndarray:
        """The mean over its positions, by default the last one that is no padding, of the activation of ``run``."""
        assert run is not None, "a vector has numbers or a run"
        at = place.intervention.at
        activation, along = _activation(place, runs[run]), along_of(at)
        size = activation.shape[along]
        if run.positions is None:
            positions = np.flatnonzero(_mask(at, self.inputs[run], (1, size)))[-1:]
        else:
            positions = np.arange(size)[run.positions.resolve(f"{run.field}.positions", size)]
        if not positions.size:
            raise Invalid("there is no last token: all is padding", run.field)
        picks = [*place.picks]
        picks[along] = positions
        mean: np.ndarray = _picked(activation, picks).mean(axis=along, keepdims=True)
        return mean

    def _positions(self, one: Intervention, own: Arrays) -> list[int] | None:
        """The positions of the tokens that ``one`` names."""
        if not one.tokens:
            return None
        name = ids_of(one.at, own.keys())
        if name not in own:
            raise Invalid(f"not accepted at {one.at}: its positions are not tokens", f"{one.field}.tokens")
        ids = own[name]
        if len(ids) != 1:
            raise Invalid(f"requires one text, got {len(ids)}", f"{one.field}.tokens")
        words, named = self._places_of(ids[0]), {_word(token): token for token in one.tokens}
        missing = [token for word, token in named.items() if word not in words]
        if missing:
            raise Invalid(f"{missing[0]!r} is not a token of the text", f"{one.field}.tokens")
        return sorted(place for word in named for place in words[word])

    def _places_of(self, ids: np.ndarray) -> dict[str, list[int]]:
        """The places of each token of a text, which are found once: many interventions name tokens of the same one."""
        key = ids.tobytes()
        if key not in self._words:
            words = self._words[key] = {}
            for place, index in enumerate(ids.tolist()):
                words.setdefault(_word(self.model.tokenizer.token(index) or ""), []).append(place)
        return self._words[key]


def check_memory(memory: int, max_bytes: int) -> None:
    """Raises TooMuchMemory: ``memory`` is more than ``max_bytes``."""
    if memory > max_bytes:
        got, most = sizes_words(memory, max_bytes)
        raise TooMuchMemory(
            f"this request needs about {got}, which exceeds the maximum allowed, {most} (max_memory_bytes); "
            "change fewer sites, or send a shorter text"
        )


def _mask(site: str, inputs: Arrays, shape: tuple[int, int]) -> np.ndarray:
    """1 for each position of ``site`` that is no padding: [batch, positions]; of sound, 1 for each."""
    if LENGTHS in inputs:
        return np.arange(shape[1]) < np.broadcast_to(inputs[LENGTHS], shape[0])[:, None]
    ids = ids_of(site, inputs.keys())
    prefix = "decoder_" if ids == DECODER_IDS else ""
    return np.broadcast_to(inputs.get(f"{prefix}attention_mask", 1) if ids in inputs else 1, shape)


def _activation(place: Place, results: Results) -> np.ndarray:
    """What a run has at the site of ``place``, in all of its layers."""
    return results.activations[place.intervention.at][: place.shape[0]]


def _picked(activation: np.ndarray, picks: Sequence[np.ndarray | None]) -> np.ndarray:
    """The selected numbers."""
    for axis, pick in enumerate(picks):
        if pick is not None:
            activation = activation.take(pick, axis)
    return activation


def _full(array: np.ndarray, place: Place) -> np.ndarray:
    """``array`` with all axes of ``place`` but that of the batch.

    Raises:
        Invalid: it does not broadcast to them.
    """
    selected = [size for axis, size in enumerate(place.selected) if axis != BATCH]
    try:
        fits = np.broadcast_shapes(array.shape, selected) == tuple(selected)
    except ValueError:
        fits = False
    if not fits:
        raise Invalid(f"expected a shape that broadcasts to {selected}, got {list(array.shape)}")
    return array.reshape((1,) * (len(selected) - array.ndim) + array.shape)


def _word(token: str) -> str:
    """A token without the characters by which tokenizers mark the begin of a word."""
    return token.strip().lstrip("Ġ▁").removeprefix("##")
