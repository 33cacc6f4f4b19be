"""Interventions as a source of inputs: those of the graph that change activations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from service.base.cost import CostModel, UnknownCost
from service.base.errors import Invalid
from service.codec.json_reader import JsonReader
from service.codec.long_tensor import read_all
from service.http.direct import RequestContext
from service.inference.source import NO_FIELDS, FieldDefinitions, InputSource, SourceInputs
from service.inference.stages import Stage, Stages
from service.interventions.intervened import OUTPUT, WHOLE, Intervened
from service.interventions.request import FIELD, Intervention, OtherRun, read_interventions, within
from service.interventions.schemas import FIELDS
from service.interventions.sites import Sites
from service.model.feature_graphs import FeatureGraphs
from service.model.model import Model
from service.tokens.request import tensors_of, tokenize


@dataclass(frozen=True)
class Intervenable:
    """A version whose activations can be changed."""

    sites: Sites
    graphs: FeatureGraphs


class InterventionSource(InputSource[Sequence[Intervention]]):
    """Reads interventions, and makes inputs of them. ``max_text_bytes`` is that of the settings."""

    fields = FIELDS

    def __init__(self, max_text_bytes: int) -> None:
        self.versions: WeakKeyDictionary[Model, Intervenable] = WeakKeyDictionary()
        self._max_text_bytes = max_text_bytes
        self._reading, self._tokenizing, self._opening = CostModel(), CostModel(), UnknownCost()

    def fields_for(self, model: Model) -> FieldDefinitions:
        return self.fields if model in self.versions else NO_FIELDS

    def read(self, given: Mapping[str, Any], model: Model, reader: JsonReader | None) -> Sequence[Intervention] | None:
        element = given.get(FIELD)
        if element is None:
            return None
        if reader is None:
            raise Invalid("not accepted in V2: POST /v1/attention or /v1/text takes interventions", FIELD)
        sites = self.versions[model].sites
        if sites.refused:
            raise Invalid(f"model '{model.name}' takes no interventions: {sites.refused}", FIELD)
        return read_interventions(element, reader, model, sites, self._max_text_bytes)

    def open(self, reference: Sequence[Intervention], model: Model, context: RequestContext) -> Stages[SourceInputs]:
        version = self.versions[model]
        if not version.graphs.are_open((WHOLE, OUTPUT)):
            yield Stage(self._opening, 0, partial(version.graphs.open, (WHOLE, OUTPUT)))
        sent = {name: array for one in reference for name, array in one.numbers.items()}
        numbers = yield Stage(self._reading, len(sent), read_all(sent, context.reservation))
        runs = [run for one in reference for run in one.runs]
        size = sum(run.texts.size for run in runs if run.texts)
        for run in runs:
            context.reservation.add(run.texts.memory(model) if run.texts else 0)
        inputs = yield Stage(self._tokenizing, size, partial(_inputs_of, runs, numbers, model))
        return Intervened(reference, inputs, numbers, model, version.sites, version.graphs)


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
            for name, array in own.items():
                shape = model.inputs[name].shape
                if "batch" not in str(shape[0]):
                    continue
                if array.ndim == len(shape) - 1:
                    own[name] = array[None]
                elif array.ndim == len(shape) and array.shape[0] != 1:
                    raise Invalid(f"expected one row, got {array.shape[0]}", name)
            inputs[run] = {name: own[name] for name in model.inputs if name in own}
    return inputs
