"""Interventions as a source of inputs: those of the graph that change activations."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from service.base.cost import NANOSECOND, UNKNOWN, CostModel
from service.base.errors import Invalid
from service.codec.json_reader import JsonReader
from service.codec.long_tensor import read_all
from service.http.direct import RequestContext
from service.inference.source import NO_FIELDS, FieldDefinitions, InputSource, SourceInputs, joined
from service.inference.stages import Stage, Stages
from service.interventions.comparison import Changes, read_changes
from service.interventions.intervenable import Intervenable
from service.interventions.intervened import Intervened
from service.interventions.request import (
    FIELD,
    Intervention,
    InterventionReader,
    OtherRun,
    check_complete,
    read_interventions,
    within,
)
from service.interventions.schemas import ANSWERED, FIELDS
from service.interventions.sites import IDS, Sites, has_batch
from service.interventions.values import OUTPUT, WHOLE, Values
from service.model.masks import check_masks
from service.model.model import Model
from service.settings import Settings
from service.tokens.request import (
    TextFields,
    TokenizingNeeds,
    check_size,
    measuring,
    tensors_of,
    tokenize,
    tokens_json,
)

NO_LAYERS = "it has no graph for them; export it again (encoder, decoder and transformers models in float32 get one)"


class InterventionSource(InputSource[Changes]):
    """Reads interventions, and makes inputs of them.

    ``files`` makes inputs of the files in their runs.
    """

    fields = FIELDS

    def __init__(self, files: InputSource[Any], settings: Settings) -> None:
        self.files = files
        self.versions: WeakKeyDictionary[Model, Intervenable] = WeakKeyDictionary()
        self._max_text_bytes, self._max_memory_bytes = settings.max_text_bytes, settings.max_memory_bytes
        self._reading, self._tokenizing = CostModel(), CostModel(NANOSECOND)

    def fields_for(self, model: Model) -> FieldDefinitions:
        return self.fields if model in self.versions else NO_FIELDS

    def answered_for(self, model: Model) -> FieldDefinitions:
        return ANSWERED if model in self.versions else NO_FIELDS

    def read(self, given: Mapping[str, Any], model: Model, reader: JsonReader | None) -> Changes | None:
        if all(value is None for value in given.values()):
            return None
        if reader is None:
            raise Invalid("not accepted in V2: POST /v1/attention or /v1/text takes interventions", next(iter(given)))
        return read_changes(given, self.reading(reader, model, self.version(model).sites))

    def read_for_steps(self, element: Any, model: Model, reader: JsonReader) -> Sequence[Intervention]:
        """The interventions in the JSON ``element`` of a request to generate.

        Raises:
            Malformed, Invalid, TooLarge: as ``read_interventions``; or generation takes none.
        """
        sites = self.version(model).sites.of_steps
        if not sites.sites:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in sites.generation.left_out.items())
            reason = reasons or "it was exported without the graphs for it; export it again"
            raise Invalid(f"model '{model.name}' takes no interventions in generation: {reason}", FIELD)
        return read_interventions(element, self.reading(reader, model, sites))

    def reading(self, reader: JsonReader, model: Model, sites: Sites) -> InterventionReader:
        """The reader of the interventions and the runs in the document of ``reader``."""
        return InterventionReader(reader, model, sites, self.files, self._max_text_bytes)

    def open(self, reference: Changes, model: Model, context: RequestContext) -> Stages[SourceInputs]:
        yield from self.open_graphs(self.versions[model], (WHOLE, OUTPUT))
        return Intervened((yield from self.values(reference.interventions, model, context)), reference)

    def version(self, model: Model) -> Intervenable:
        """The version of ``model``.

        Raises:
            Invalid: its activations cannot be changed.
        """
        version = self.versions.get(model)
        refused = NO_LAYERS if version is None else version.sites.refused
        if version is None or refused:
            raise Invalid(f"model '{model.name}' takes no interventions: {refused}", FIELD)
        return version

    def open_graphs(self, version: Intervenable, names: Sequence[str]) -> Stages[None]:
        """Open the graphs of these names, if they are not.

        Raises:
            Invalid: the files were removed.
        """
        if not version.graphs.are_open(names):
            yield Stage(UNKNOWN, 0, partial(version.graphs.open, names))

    def values(self, interventions: Sequence[Intervention], model: Model, context: RequestContext) -> Stages[Values]:
        """The values of ``interventions``, whose texts are tokenized.

        Raises:
            Invalid: a number or a text that does not fit to the model.
            TooLarge: the texts are longer than ``max_text_bytes`` together.
        """
        sent = {name: array for one in interventions for name, array in one.numbers.items()}
        numbers = yield Stage(self._reading, len(sent), read_all(sent, context.reservation))
        runs = [run for one in interventions for run in one.runs]
        texts = [run.texts for run in runs if run.texts]
        check_size(sum(one.size for one in texts), self._max_text_bytes, FIELD)
        needs: TokenizingNeeds = yield Stage(*measuring(texts, model, self._max_text_bytes, FIELD))
        context.reservation.add(needs.memory)
        work = needs.work + sum(array.size for array in numbers.values())
        inputs = yield Stage(self._tokenizing, work, partial(_inputs_of, runs, numbers, model))
        for run in runs:
            if run.files is not None:
                made = yield from self.files.tensors(run.files, model, context)
                inputs[run] = _with_files(run, inputs[run], made, model)
        version = self.versions[model]
        return Values(interventions, inputs, numbers, model, version.sites, version.graphs, self._max_memory_bytes)

    def own_inputs(
        self, run: OtherRun, model: Model, context: RequestContext
    ) -> Stages[tuple[dict[str, np.ndarray], list[bytes]]]:
        """The inputs of the run that is changed, of one row, and its tokens as JSON fields.

        Raises:
            Invalid: they do not fit to the model.
        """
        tensors = yield Stage(self._reading, len(run.tensors), read_all(run.tensors, context.reservation))
        if run.files is not None:
            tensors = _with_files(run, tensors, (yield from self.files.tensors(run.files, model, context)), model)
        if run.texts is None:
            return in_one_row(tensors, model), []
        needs: TokenizingNeeds = yield Stage(*measuring([run.texts], model, self._max_text_bytes))
        context.reservation.add(needs.memory)
        made: tuple[dict[str, np.ndarray], list[bytes]] = yield Stage(
            self._tokenizing, needs.work, partial(_of_texts, run.texts, model)
        )
        of_texts, tokens = made
        return in_one_row(tensors | of_texts, model), tokens


def _of_texts(texts: TextFields, model: Model) -> tuple[dict[str, np.ndarray], list[bytes]]:
    """The tensors of one text, and its tokens as JSON fields."""
    tokenized = tokenize(texts, model)
    return tensors_of(tokenized, True, model), tokens_json(tokenized, True)


def _inputs_of(
    runs: Sequence[OtherRun], numbers: Mapping[str, np.ndarray], model: Model
) -> dict[OtherRun, dict[str, np.ndarray]]:
    """The inputs of each run, with a batch of one row."""
    inputs = {}
    for run in runs:
        with within(run.field):
            own = {name: numbers[f"{run.field}.{name}"] for name in run.tensors}
            if run.texts is not None:
                own |= tensors_of(tokenize(run.texts, model), True, model)
            inputs[run] = in_one_row(own, model)
    return inputs


def _with_files(
    run: OtherRun, given: Mapping[str, np.ndarray], made: Mapping[str, np.ndarray], model: Model
) -> dict[str, np.ndarray]:
    """The inputs ``given`` in a run, and those ``made`` of its files, with a batch of one row.

    Raises:
        Malformed: an input is given twice.
        Invalid: one is missing.
    """
    with within(run.field):
        tensors = joined(given, made)
        of_texts = [f"{prefix}{IDS}" for prefix in (run.texts.texts if run.texts else ())]
        check_complete({*tensors, *of_texts}, model, run.outputs)
        return in_one_row(tensors, model)


def in_one_row(given: Mapping[str, np.ndarray], model: Model) -> dict[str, np.ndarray]:
    """The inputs of a run, with a batch of one row.

    Raises:
        Invalid: several rows, or a mask that is ambiguous.
    """
    own = {name: given[name] for name in model.inputs if name in given}
    for name, array in own.items():
        shape = model.inputs[name].shape
        if not has_batch(shape):
            continue
        if array.ndim == len(shape) - 1:
            own[name] = array[None]
        elif array.ndim == len(shape) and array.shape[0] != 1:
            raise Invalid(f"expected one row, got {array.shape[0]}", name)
    check_masks(model, own)
    return own
