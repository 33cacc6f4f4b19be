"""A run whose activations are changed, after the other runs whose activations it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from service.base.errors import Invalid, TooMuchMemory
from service.base.messages import sizes_words
from service.engine.task import Execute
from service.interventions.changes import ITEM_BYTES, LAST, Change, Place, place_of
from service.interventions.request import FIELD, Intervention, OtherRun, within
from service.interventions.sites import KINDS, RETURNED, Sites, along_of, ids_of
from service.model.estimate import RunEstimate
from service.model.feature_graphs import FeatureGraphs
from service.model.graph import Arrays, Graph, RunOptions
from service.model.model import Model
from service.ort.failures import RUN_ERRORS
from service.tensors.cast import is_finite
from service.tensors.dims import Sizes

WHOLE, OUTPUT = "interventions", "interventions_output"  # graphs; OUTPUT has no activations
ALONE = ("output", "embedding")  # the outputs of OUTPUT
BATCH = 1  # its axis in an activation


class Intervened:
    """The changes of one request to ``model``. ``inputs`` are those of the other runs, ``numbers`` what was sent."""

    is_quick = False
    outputs: tuple[str, ...] = ()

    def __init__(
        self,
        interventions: Sequence[Intervention],
        inputs: Mapping[OtherRun, dict[str, np.ndarray]],
        numbers: Mapping[str, np.ndarray],
        model: Model,
        sites: Sites,
        graphs: FeatureGraphs,
    ) -> None:
        self._interventions = interventions
        self._inputs, self._numbers = inputs, numbers
        self._model, self._sites, self._graphs = model, sites, graphs
        self._sizes = {run: _sizes(run, own, model) for run, own in inputs.items()}
        self._changes: dict[str, Change] = {}
        self._own: Arrays = {}

    @property
    def cache_key(self) -> object:
        """Equal for changes of the same sites beside runs of the same sizes: a plan has their memory and time."""
        others = tuple(tuple(sizes.items()) for sizes in self._sizes.values())
        return FIELD, others, self._has_mean, tuple(sorted({one.at for one in self._interventions}))

    @property
    def _has_mean(self) -> bool:
        return any(isinstance(one.replace, str) for one in self._interventions)

    def verify(self) -> None:
        """Nothing is to be checked."""

    def covers(self, given: Sequence[str] | Mapping[str, object]) -> list[str]:
        return [*given]

    def add_to(self, own: Arrays) -> dict[str, np.ndarray]:
        """The request's ``own`` inputs, to which the places of the changes are resolved.

        Raises:
            Invalid: an index out of range, a token that is not there, or a tensor of another shape.
        """
        self._own = own
        sizes = self._model.bind(own)
        self._changes = {}
        for one in self._interventions:
            shape, source = self._sites.shape(one.at, sizes), None
            if one.source is not None:
                source = self._sites.shape(one.at, self._sizes[one.source])
            place = place_of(one, shape, self._positions(one, own), source)
            self._changes.setdefault(one.at, Change(shape)).places.append(place)
            self._check_numbers(place)
        for change in self._changes.values():
            change.check()
        return {**own}

    def estimate(self, inputs: Arrays, outputs: Sequence[str], max_memory_bytes: int) -> RunEstimate:
        """The memory and time of all runs.

        Raises:
            TooMuchMemory: more than ``max_memory_bytes``.
        """
        model, sizes = self._model, self._model.bind(inputs)
        graph = self._graphs.graph(OUTPUT if {*outputs} <= {*ALONE} else WHOLE)
        own = model.estimate(inputs, outputs, sizes, max_memory_bytes, self._known(graph))
        whole = self._known(self._graphs.graph(WHOLE)) if self._inputs or self._has_mean else None
        runs = [(self._inputs[run], self._sizes[run]) for run in self._inputs]
        if self._has_mean:
            runs.append(({**inputs}, sizes))
        others = [model.estimate(one, [], its, max_memory_bytes, whole) for one, its in runs]
        kept = sum(ITEM_BYTES * prod(self._sites.shape(site, its)) for _, its in runs for site in self._sites.sites)
        memory = own.memory + kept + max((one.memory for one in others), default=0)
        memory += sum(change.memory() for change in self._changes.values())
        if memory > max_memory_bytes:
            got, most = sizes_words(memory, max_memory_bytes)
            raise TooMuchMemory(
                f"this request needs about {got}, which exceeds the maximum allowed, {most} (max_memory_bytes); "
                "change fewer sites, or send a shorter text"
            )
        return replace(own, graph=graph, size=own.size + sum(one.size for one in others), memory=memory)

    def run(
        self,
        graph: Graph,
        execute: Execute,
        inputs: Arrays,
        outputs: Sequence[str],
        options: RunOptions | None,
    ) -> dict[str, np.ndarray]:
        """The ``outputs`` of the changed run.

        Raises:
            Invalid: an activation of another run is not finite.
            OutOfMemory, NotEnoughMemory, DeviceLost: the device cannot run it now, or has failed.
        """
        found = {run: self._activations(graph, run, own, options) for run, own in self._inputs.items()}
        unchanged = self._activations(graph, None, inputs, options) if self._has_mean else {}
        changes: dict[str, np.ndarray] = {}
        for site, change in self._changes.items():
            values = {
                place.intervention: self._value(place, found, unchanged)
                for place in change.places
                if place.intervention.add or place.intervention.replaces
            }
            kinds = [kind for kind in KINDS if f"{site}_{kind}" in graph.inputs]
            changes |= change.inputs(site, values, kinds)
        return execute({**inputs, **changes}, outputs)

    def _activations(
        self, graph: Graph, run: OtherRun | None, inputs: Arrays, options: RunOptions | None
    ) -> dict[str, np.ndarray]:
        """What another run has at the sites that are changed by it; without ``run`` those of this run, unchanged."""
        names = {
            one.at: RETURNED.get(one.at, one.at)
            for one in self._interventions
            if (run in one.runs if run is not None else isinstance(one.replace, str))
        }
        whole = self._graphs.beside(graph, WHOLE)
        try:
            outputs = whole.session.run(whole.select_inputs(inputs), [*dict.fromkeys(names.values())], options)
        except RUN_ERRORS as error:
            raise (self._model.provider.translate(error) or error) from None
        for site, name in names.items():
            if not is_finite(outputs[name]):
                raise Invalid(f"{site} is not finite: the inputs overflow float32", run.field if run else FIELD)
        return {site: outputs[name][: self._sites.sites[site][0]] for site, name in names.items()}

    def _value(
        self, place: Place, found: Mapping[OtherRun, Mapping[str, np.ndarray]], unchanged: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """What is added at a place, or replaces it there: [layers, batch, ...]."""
        one = place.intervention
        if one.source is not None:
            activation = found[one.source][one.at]
            picks = [*place.picks]
            picks[along_of(one.at)] = place.source_positions
            return _picked(activation, picks)
        if isinstance(one.replace, str):
            return self._mean(place, unchanged[one.at])
        if one.replace is not None:
            return np.expand_dims(_full(self._numbers[f"{one.field}.replace"], place), BATCH)
        assert one.add is not None, "it adds"
        if one.add.numbers is not None:
            vector = np.expand_dims(_full(self._numbers[f"{one.field}.add"], place), BATCH)
        else:
            vector = self._steering(place, one.add.plus, found)
            if one.add.minus is not None:
                vector = vector - self._steering(place, one.add.minus, found)
        if one.norm_match:
            length = np.linalg.norm(vector, axis=-1, keepdims=True)
            if not length.all():
                raise Invalid("expected a vector that is not 0, which has no direction", f"{one.field}.add")
            vector = vector / length
        return np.asarray(vector * one.add.scale, np.float32)

    def _steering(
        self, place: Place, run: OtherRun | None, found: Mapping[OtherRun, Mapping[str, np.ndarray]]
    ) -> np.ndarray:
        """The mean over its positions, by default the last one, of the activation of ``run``."""
        assert run is not None, "a vector has numbers or a run"
        activation, along = found[run][place.intervention.at], along_of(place.intervention.at)
        size = activation.shape[along]
        positions = np.arange(size)[(run.positions or LAST).resolve(f"{run.field}.positions", size)]
        picks = [*place.picks]
        picks[along] = positions
        mean: np.ndarray = _picked(activation, picks).mean(axis=along, keepdims=True)
        return mean

    def _mean(self, place: Place, activation: np.ndarray) -> np.ndarray:
        """The mean over the positions that are no padding."""
        along = along_of(place.intervention.at)
        prefix = "decoder_" if ids_of(place.intervention.at, self._own.keys()).startswith("decoder_") else ""
        mask = self._own.get(f"{prefix}attention_mask")
        weights = np.ones((activation.shape[BATCH], activation.shape[along])) if mask is None else np.asarray(mask)
        shape = [1] * activation.ndim
        shape[BATCH], shape[along] = activation.shape[BATCH], activation.shape[along]
        weights = np.broadcast_to(weights, (shape[BATCH], shape[along])).reshape(shape)
        mean = (activation * weights).sum(axis=along, keepdims=True) / weights.sum(axis=along, keepdims=True)
        picks = [*place.picks]
        picks[along] = None
        return _picked(mean.astype(np.float32), picks)

    def _positions(self, one: Intervention, own: Arrays) -> list[int] | None:
        """The positions of the tokens that ``one`` names."""
        if not one.tokens:
            return None
        ids = own[ids_of(one.at, own.keys())]
        if len(ids) != 1:
            raise Invalid(f"requires one text, got {len(ids)}", f"{one.field}.tokens")
        tokenizer = self._model.tokenizer
        words = [_word(tokenizer.token(int(token)) or "") for token in ids[0]]
        named = {_word(token): token for token in one.tokens}
        missing = [token for word, token in named.items() if word not in words]
        if missing:
            raise Invalid(f"{missing[0]!r} is not a token of the text", f"{one.field}.tokens")
        return [place for place, word in enumerate(words) if word in named]

    def _check_numbers(self, place: Place) -> None:
        """Raises Invalid: the numbers that were sent do not fit to what they change."""
        for name in ("add", "replace"):
            key = f"{place.intervention.field}.{name}"
            if key in self._numbers:
                with within(key):
                    _full(self._numbers[key], place)

    def _known(self, graph: Graph) -> Graph:
        """``graph`` with the outputs that the model has, for its estimate."""
        return replace(graph, outputs=graph.outputs & self._model.outputs.keys())


def _sizes(run: OtherRun, inputs: Arrays, model: Model) -> Sizes:
    with within(run.field):
        return model.bind(inputs)


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
