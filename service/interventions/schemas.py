"""The field ``interventions`` in the OpenAPI document."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from service.inference.source import FieldDefinitions
from service.interventions.comparison import BASELINE, DIFFERENCE, MAX_METRICS
from service.interventions.metrics import KINDS
from service.interventions.request import FIELD, MAX_COUNT
from service.native.openapi import Absent, Tensor

Indices = int | list[int] | str


class OtherRun(BaseModel, extra="allow"):
    """Another run of the model: a text with the options of ``/v1/text``, or the model's own inputs."""

    text: str | None = None
    text_pair: str | None = None
    text_target: str | None = Field(None, description="of the decoder, if the model has two stacks")
    positions: Indices | None = Field(None, description="of its activation")


class TextDirection(OtherRun):
    """The activation of a text, less that of another."""

    minus: OtherRun | None = None
    scale: float | None = 1


class Intervention(BaseModel, extra="forbid", serialize_by_alias=True):
    """A change of an activation: one of ``scale``, ``add``, ``replace`` and ``from``."""

    at: str = Field(
        description="a site of the model's description: hidden, attention_output, mlp_output, head_output, weights"
    )
    layers: Indices | None = Field(None, description="null, here and below: all")
    heads: Indices | None = Field(None, description="at head_output and weights")
    positions: Indices | None = Field(None, description="not at weights")
    tokens: list[str] | None = Field(None, description="all places of these tokens, in place of positions")
    queries: Indices | None = Field(None, description="at weights")
    keys: Indices | None = Field(None, description="at weights")
    scale: float | None = Field(None, description="a factor, of what is added beside add; 0 removes")
    renormalize: bool | None = Field(False, description="divide the weights of a query by their sum again")
    add: Tensor | TextDirection | None = Field(None, description="numbers that broadcast to what is selected, or texts")
    norm_match: bool | None = Field(False, description="add a vector of the length of each that it is added to")
    replace: Tensor | str | None = Field(
        None, description='numbers, or "mean": that over the positions of the unchanged run'
    )
    source: OtherRun | None = Field(None, alias="from", description="what another run has there")


ANNOTATION: Any = Annotated[list[Intervention], Field(max_length=MAX_COUNT)] | None


class Difference(BaseModel):
    """A metric of the run without interventions, and of the changed one; of several rows a list for each."""

    metric: str | dict[str, list[int]]
    unchanged: float | list[float]
    changed: float | list[float]


class Baseline(BaseModel, extra="allow"):
    """The outputs of the run without interventions, and its next tokens."""


ANSWERED: FieldDefinitions = {
    BASELINE: (Baseline | Absent, Field(None, alias=BASELINE)),
    DIFFERENCE: (
        Difference | list[Difference] | Absent,
        Field(None, alias=DIFFERENCE, description="a list where the request has one"),
    ),
}
MetricField: Any = str | dict[str, int | str | list[int | str]]
FIELDS = {
    FIELD: (ANNOTATION, Field(None, description="changes of activations, applied in this order")),
    BASELINE: (bool | None, Field(False, description="answer the outputs of the run without interventions, too")),
    DIFFERENCE: (
        MetricField | list[MetricField] | None,
        Field(
            None,
            description=f"metrics of both runs, one or at most {MAX_METRICS}, as those of a sweep: {', '.join(KINDS)}; "
            "of the last token of a language model",
        ),
    ),
}
