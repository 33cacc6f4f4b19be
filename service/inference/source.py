"""Sources of inputs outside of request bodies, such as stored memories."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from service.base.errors import Invalid, Malformed
from service.codec.json_reader import JsonReader
from service.engine.task import StoredInputs
from service.http.direct import RequestContext
from service.inference.stages import Stages
from service.model.estimate import RunEstimate
from service.model.graph import Arrays
from service.model.model import Model

FieldDefinitions = Mapping[str, tuple[Any, Any]]  # by name: a pair of annotation and FieldInfo, as pydantic takes it
NO_FIELDS: FieldDefinitions = {}
Reference = TypeVar("Reference")


class SourceInputs(StoredInputs, Protocol):
    """The inputs of one request that its source has."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that the run computes for the source."""

    @property
    def cache_key(self) -> object:
        """Equal for inputs that make no difference to the plan of a request."""

    @property
    def is_long_to_add(self) -> bool:
        """Whether ``add_to`` and ``estimate`` may take longer than the event loop can wait."""

    @property
    def answer_count(self) -> int:
        """How many sets of outputs the answer has."""

    @property
    def further(self) -> Mapping[str, Arrays | bytes]:
        """Fields of the answer behind the outputs, after the run: JSON, or another set of outputs in an object."""

    def covers(self, given: Sequence[str] | Mapping[str, Any]) -> list[str]:
        """The model's inputs that are not missing beside those ``given``."""

    def add_to(self, own: Arrays) -> dict[str, np.ndarray]:
        """The request's ``own`` inputs and those of the source, all in the shapes of the run.

        Raises:
            Invalid: an input that the source has, too, or that does not fit to it.
        """

    def estimate(self, inputs: Arrays, outputs: Sequence[str], max_memory_bytes: int) -> RunEstimate:
        """The memory and time of a run for ``outputs``.

        Raises:
            Invalid: a shape or a number does not fit to the model.
            TooMuchMemory: it needs more than ``max_memory_bytes`` bytes.
        """


class InputSource(Generic[Reference]):
    """Finds the inputs that a request refers to in its fields, in V2 in its parameters.

    This one has no fields: all inputs are in the body. A feature's source overrides fields and methods.
    """

    fields: FieldDefinitions = NO_FIELDS
    stores_inputs = True  # else it makes ``tensors``, and has nothing to ``open``; a request may use one that stores

    def fields_for(self, _model: Model) -> FieldDefinitions:
        """Those of ``fields`` that requests to a model may have."""
        return self.fields

    def answered_for(self, _model: Model) -> FieldDefinitions:
        """Further fields that answers of a model may have."""
        return NO_FIELDS

    def replaced(self, _model: Model) -> Collection[str]:
        """The inputs of a model that a request may leave out for one of the fields."""
        return ()

    def read(self, _given: Mapping[str, Any], _model: Model, _reader: JsonReader | None) -> Reference | None:
        """The reference in those of ``fields`` that are given; None where there is none.

        ``_reader`` is that of the request's JSON; V2's parameters, which are numbers and texts, have none.

        Raises:
            Invalid: a field of another type, or one that needs another beside it.
        """
        return None

    def within(self, reference: Reference, _field: str) -> Reference:
        """``reference``, whose errors name a place within ``_field``."""
        return reference

    @property
    def of_tensors(self) -> "InputSource[Any]":
        """The source without those that store inputs."""
        return InputSource[Any]() if self.stores_inputs else self

    def tensors(self, _reference: Reference, _model: Model, _context: RequestContext) -> Stages[dict[str, np.ndarray]]:
        """The inputs of the model that are computed from the fields, and belong to the request as those of its body do.

        Raises:
            Invalid, UnsupportedMedia, TooLarge: a field that is wrong.
        """
        yield from ()
        return {}

    def open(self, reference: Reference, model: Model, context: RequestContext) -> Stages[SourceInputs | None]:
        """The inputs of a request to ``model``, which are kept until the request's reservation is released.

        Raises:
            NotFound, Gone, Invalid, Conflict: there are none, or they do not fit to the model or the request.
        """
        raise NotImplementedError("no request refers to it")


def joined(given: Mapping[str, np.ndarray], made: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs ``given`` in a request, and those ``made`` of its other fields.

    Raises:
        Malformed: an input is both.
    """
    for name in made.keys() & given.keys():
        raise Malformed("given, and computed from another field, too; send one of them", name)
    return {**given, **made}


References = Sequence[tuple[InputSource[Any], Any]]  # each with its source


class Sources(InputSource[References]):
    """Several sources, of which a request may use one that stores inputs, and any others."""

    def __init__(self, sources: Sequence[InputSource[Any]]) -> None:
        self._sources = sources
        self._fields: WeakKeyDictionary[Model, FieldDefinitions] = WeakKeyDictionary()

    def answered_for(self, model: Model) -> FieldDefinitions:
        return {name: field for source in self._sources for name, field in source.answered_for(model).items()}

    def replaced(self, model: Model) -> Collection[str]:
        return {name for source in self._sources for name in source.replaced(model)}

    def within(self, reference: References, field: str) -> References:
        return [(source, source.within(own, field)) for source, own in reference]

    @property
    def of_tensors(self) -> "Sources":
        return Sources([source for source in self._sources if not source.stores_inputs])

    def fields_for(self, model: Model) -> FieldDefinitions:
        fields = self._fields.get(model)
        if fields is None:
            fields = {name: field for source in self._sources for name, field in source.fields_for(model).items()}
            self._fields[model] = fields
        return fields

    def read(self, given: Mapping[str, Any], model: Model, reader: JsonReader | None) -> References | None:
        found: list[tuple[InputSource[Any], Any]] = []
        for source in self._sources:
            own = {name: given[name] for name in source.fields_for(model) if name in given}
            reference = source.read(own, model, reader)
            if reference is None:
                continue
            for other, _ in found:
                if source.stores_inputs and other.stores_inputs:
                    raise Invalid(
                        f"cannot be given together with {next(iter(other.fields_for(model)))}", next(iter(own))
                    )
            found.append((source, reference))
        return found or None

    def tensors(self, reference: References, model: Model, context: RequestContext) -> Stages[dict[str, np.ndarray]]:
        made: dict[str, np.ndarray] = {}
        for source, own in reference:
            made |= yield from source.tensors(own, model, context)
        return made

    def open(self, reference: References, model: Model, context: RequestContext) -> Stages[SourceInputs | None]:
        for source, own in reference:
            if source.stores_inputs:
                return (yield from source.open(own, model, context))
        return None
