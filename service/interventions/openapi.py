"""The operations that sweep and that look through the lens in the OpenAPI document, for each model that can."""

from typing import Annotated, Any

from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, create_model

from service.inference.source import FieldDefinitions
from service.interventions.intervenable import Intervenable
from service.interventions.lens.request import DEFAULT_TOP_K
from service.interventions.metrics import KINDS
from service.interventions.request import MAX_COUNT
from service.interventions.schemas import Indices, Intervention
from service.model.model import Model
from service.native.openapi import Absent, Integers, Numbers, model_class, operation, problems
from service.native.text_schemas import EXAMPLE, Tokens
from service.tokens.next_tokens import MAX_COUNT as MAX_TOKENS

STATUSES = (400, 404, 413, 415, 422, 500, 503, 504, 507)
EXAMPLE_CHANGE = {"at": "hidden", "scale": 0}


class Run(BaseModel, extra="forbid"):
    """The run: a text with the options of ``/v1/text``, or the model's own inputs."""

    text: str | None = None
    text_pair: str | None = None
    text_target: str | None = Field(None, description="of the decoder, if the model has two stacks")
    truncation: bool | None = Field(None, description="truncate a text that is too long")
    add_special_tokens: bool | None = Field(True, description="add the tokens that begin, separate and end texts")


class SweepFields(Run):
    """An intervention at each place of a grid."""

    intervention: Intervention = Field(description="without the axes of the grid")
    over: dict[str, Indices] = Field(
        description='the axes of the grid with the indices of each, or "all": layers, heads, positions, queries, keys'
    )
    metric: str | dict[str, int | str | list[int | str]] | None = Field(
        None,
        description=f'{", ".join(KINDS)}; an object where it has tokens, {{"probability": " Paris"}}; null: kl, or '
        "cosine_distance of hidden states and of texts beside images",
    )
    position: int | None = Field(None, description="output position; null: last token of a language model, else 0")
    stream: bool | None = Field(
        False, description="return text/event-stream: start, a row for each index of the first axis, then done"
    )


class SweepAnswer(Tokens, extra="allow"):
    """The indices of each axis stand beside these fields, and the tokens of a text."""

    __pydantic_extra__: dict[str, list[int]]

    model: str
    axes: list[str]
    metric: str | dict[str, list[int]]
    unchanged: float = Field(description="the metric of the unchanged run")
    source: float | None = Field(
        None, description="that of the run in from; null: another number of images, or too short"
    )
    values: Numbers = Field(description="nested lists, by the axes")


class LensFields(Run):
    """A run, and how much to answer."""

    lens_top_k: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = Field(
        DEFAULT_TOP_K, description="number of tokens per layer and position"
    )
    layers: Indices | None = Field(None, description="null: all, and the output after the last one")
    positions: Indices | None = Field(None, description="null: all")
    interventions: Annotated[list[Intervention], Field(max_length=MAX_COUNT)] | None = Field(
        None, description="interventions in the run"
    )


class Likeliest(BaseModel):
    """[layers, positions, lens_top_k], the likeliest token first."""

    indices: Integers
    probabilities: Numbers
    output_probabilities: list[list[float]] = Field(
        description="[layers, positions]: probability of the output's likeliest token"
    )
    tokens: list[list[list[str | None]]] | Absent = Field(None, description="null: the id has no token")


class LensAnswer(Tokens):
    """The tokens of a text stand beside these fields."""

    model: str
    layers: list[int]
    positions: list[int]
    lens: Likeliest
    ranks: list[list[int | None]] = Field(description="[layers, positions]: rank of the next token; 1 = likeliest")


def routes(model: Model, version: Intervenable, files: FieldDefinitions) -> list[APIRoute]:
    """The documented routes of a model, whose runs may have the fields ``files``."""
    summary, answer = "Change every place of a grid", "A number for each cell"
    found = [_route("sweep", model, files, SweepFields, SweepAnswer, summary, answer)]
    if version.sites.head is not None and model.signature.scores_tokens:
        summary = "See what each layer predicts"
        answer = "The likeliest tokens at each place"
        found.append(_route("lens", model, files, LensFields, LensAnswer, summary, answer))
    return found


def _route(
    name: str, model: Model, files: FieldDefinitions, fields: type[BaseModel], answer: type[BaseModel], summary: str,
    described: str,
) -> APIRoute:  # fmt: skip
    own: list[tuple[Any, Any]] = [
        (Any, Field(None, alias=name, description="in place of a text")) for name in model.inputs
    ]
    of_files: dict[str, Any] = {**files}
    choices = create_model(f"{name.title()}Choices", __base__=fields, **of_files)
    body = model_class(f"{model.name}_{name}_request", choices, own)
    assert model.spec is not None, "models of transformers have one"
    run = {"text": EXAMPLE} if model.tokenizer else model.spec.example
    change = {"intervention": EXAMPLE_CHANGE, "over": {"layers": "all"}} if name == "sweep" else {}
    return operation(
        f"/v1/{name}/{model.name}",
        body,
        {**run, **change},
        tags=["interventions"],
        summary=f"{summary}, of {model.name}",
        operation_id=f"{name}_{model.name}",
        response_model=answer,
        response_description=described,
        responses=problems(*STATUSES),
    )
