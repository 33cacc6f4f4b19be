"""Sources of inputs outside of request bodies, such as stored memories."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from service.engine.task import StoredInputs
from service.http.direct import RequestContext
from service.inference.stages import Stages
from service.model.estimate import RunEstimate
from service.model.graph import Arrays
from service.model.model import Model

FieldDefinitions = Mapping[str, tuple[Any, Any]]  # by name: a pair of annotation and FieldInfo, as pydantic takes it
Reference = TypeVar("Reference")


class SourceInputs(StoredInputs, Protocol):
    """The inputs of one request that its source has."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that the run computes for the source."""

    @property
    def cache_key(self) -> object:
        """Equal for inputs that make no difference to the plan of a request."""

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

    fields: ClassVar[FieldDefinitions] = {}

    def read(self, _given: Mapping[str, Any]) -> Reference | None:
        """The reference in those of ``fields`` that are given; None where there is none.

        Raises:
            Invalid: a field of another type, or one that needs another beside it.
        """
        return None

    def open(self, reference: Reference, model: Model, context: RequestContext) -> Stages[SourceInputs]:
        """The inputs of a request to ``model``, which are kept until the request's reservation is released.

        Raises:
            NotFound, Gone, Invalid, Conflict: there are none, or they do not fit to the model or the request.
        """
        raise NotImplementedError("no request refers to it")
