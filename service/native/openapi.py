"""The native API's part of the OpenAPI document: an operation with a runnable example for each block."""

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import Body
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model
from pydantic.config import JsonDict
from pydantic.json_schema import SkipJsonSchema

from service.base.errors import codes, meaning
from service.inference.source import FieldDefinitions, InputSource
from service.model.masks import ADDITIVE_MASK, FLAG, describe_input
from service.model.model import Model
from service.native.request import DEFAULT_OUTPUTS
from service.selection.answer import SCALE
from service.selection.derived import derived_outputs, derived_shape
from service.selection.options import OPTIONS, PLACES, WEIGHTS
from service.tensors.dims import format_dims
from service.tensors.spec import TensorSpec

LAYERED = ("layers", "reduce_layers")  # options of blocks with an axis of layers
ON_REQUEST = "Answered if outputs names it."
INT64: JsonDict = {"format": "int64"}  # Go and Java have 32 bits without it
Absent = SkipJsonSchema[None]  # a field that may be missing, and is never null
KINDS: dict[str, type] = {"b": bool, "i": int, "f": float}  # of a parameter, by its numpy kind


class FlatTensor(BaseModel, extra="forbid"):
    """The numbers in one row-major list."""

    shape: list[int]
    data: list[Any]


class EncodedTensor(BaseModel, extra="forbid"):
    """The numbers as little-endian bytes."""

    shape: list[int]
    dtype: str = Field(examples=["float32"])
    base64: str = Field(json_schema_extra={"contentEncoding": "base64"})


class Tensor(RootModel[list[Any] | FlatTensor | EncodedTensor]):
    """Nested lists of numbers (of booleans in a mask), or an object with a shape."""


class Places(RootModel[int | list[int] | str]):
    """An index, a list of indices, or text of indices and ranges, whose end is not included: "0,3,5:8,-1"."""


class Numbers(RootModel[float | list[Any] | None]):
    """Nested lists of numbers, or a number; in scores, null is -infinity."""  # generators know no recursive lists


class Integers(RootModel[list[Any]]):
    """Nested lists of integers."""


class LargestWeights(BaseModel):
    """The weights_top_k largest weights of each query, largest first, and the positions of their keys."""

    indices: Integers
    values: Numbers


class Inputs(BaseModel, extra="allow"):
    """Inputs, parameters and options that only some blocks have stand beside these fields."""

    __pydantic_extra__: dict[str, Tensor | bool | float | str | None]


class AttentionAnswer(BaseModel, extra="allow"):
    """The requested outputs stand beside these fields."""

    __pydantic_extra__: dict[str, Numbers | LargestWeights]

    block: str
    output: Numbers | Absent = None
    weights: Numbers | LargestWeights | Absent = None


def _list_codes(schema: dict[str, Any]) -> None:
    schema["enum"] = codes()


def _without_default(schema: dict[str, Any]) -> None:
    del schema["default"]


class Problem(BaseModel):
    """RFC 9457."""

    type: str = Field(description="the code's place in the documentation, relative to the server")
    title: str
    status: int
    code: str = Field(description="the kind of error, for programs", json_schema_extra=_list_codes)
    detail: str
    field: str | Absent = Field(
        None, description="the tensor or parameter at fault", json_schema_extra=_without_default
    )


CHOICES: FieldDefinitions = {  # fields of a request that are no inputs
    "outputs": (list[str] | None, Field(list(DEFAULT_OUTPUTS))),
    **{
        name: (
            (Places if option.kind is PLACES else option.kind.annotation) | None,
            Field(option.default, description=option.description, ge=option.kind.least, le=option.kind.most),
        )
        for name, option in OPTIONS.items()
    },
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documentation of error responses."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": meaning(status), "content": content} for status in statuses}


def operation(path: str, body: Any, example: Any, **about: Any) -> APIRoute:
    """The documented route of a POST with a JSON ``body`` such as ``example``; ``about`` are fields of ``APIRoute``."""

    def run(body: Any) -> None: ...

    run.__annotations__["body"] = Annotated[body, Body()]
    request = {"content": {"application/json": {"example": example}}}
    return APIRoute(path, run, methods=["POST"], openapi_extra={"requestBody": request}, **about)


def routes(blocks: dict[str, Model], source: InputSource[Any]) -> list[APIRoute]:
    """A documented route for each of ``blocks``, and one for any; one undocumented route answers them all.

    The fields of ``source`` stand beside inputs and options.
    """
    return [*(_route(model, source) for model in blocks.values()), _any_block(blocks)]


def _any_block(blocks: dict[str, Model]) -> APIRoute:
    """For clients that are generated without the block."""
    choices: dict[str, Any] = {name: field for name, field in CHOICES.items() if name not in LAYERED}
    request = create_model("AttentionRequest", __base__=Inputs, **choices)

    def run(block: str, body: Any) -> None: ...

    run.__annotations__["body"] = Annotated[request, Body()]
    examples = {name: {"summary": name, "value": model.spec.example} for name, model in blocks.items() if model.spec}
    route = _documented("{block}", run, "Run a block", "Any block, with inputs of any name.", "run", AttentionAnswer)
    route.openapi_extra = {"requestBody": {"content": {"application/json": {"examples": examples}}}}
    return route


def _route(model: Model, source: InputSource[Any]) -> APIRoute:
    spec = model.spec
    assert spec is not None

    def run(body: Any) -> None: ...

    run.__annotations__["body"] = Annotated[_request(model, source), Body()]
    description = f"{spec.description}\n\n`{spec.formula}`\n\n{spec.source}"
    answer = model_class(f"{model.name}_answer", BaseModel, answer_fields(model, source))
    route = _documented(model.name, run, spec.title, description, f"run_{model.name}", answer)
    route.openapi_extra = {"requestBody": {"content": {"application/json": {"example": spec.example}}}}
    return route


def _documented(
    block: str, run: Any, summary: str, description: str, operation_id: str, answer: type[BaseModel]
) -> APIRoute:
    return APIRoute(
        f"/v1/attention/{block}",
        run,
        methods=["POST"],
        tags=["attention"],
        summary=summary,
        description=description,
        operation_id=operation_id,
        response_model=answer,
        response_description="The requested outputs",
        responses=problems(*sorted({400, 404, 409, 410, 413, 415, 422, 500, 503, 504, 507})),
    )


def _request(model: Model, source: InputSource[Any]) -> type[BaseModel]:
    others, replaced = source.fields_for(model), source.replaced(model)
    fields = [_input(model, name, tensor, others, replaced) for name, tensor in model.inputs.items()]
    if model.masks:
        fields.append((bool | None, Field(False, alias=ADDITIVE_MASK, description=FLAG)))
    return model_class(f"{model.name}_request", choices_of(model, others), fields)


def choices_of(model: Model, others: FieldDefinitions) -> type[BaseModel]:
    """``CHOICES`` and ``others``, without fields that the block lacks, or that are inputs of its graph."""
    lacking = LAYERED if len(model.outputs["weights"].shape) < 5 else ()
    kept: dict[str, Any] = {
        name: field for name, field in {**CHOICES, **others}.items() if name not in model.inputs and name not in lacking
    }
    return create_model("Choices", __config__=ConfigDict(extra="forbid"), **kept)


def _input(
    model: Model, name: str, tensor: TensorSpec, others: FieldDefinitions, replaced: Collection[str]
) -> tuple[Any, Any]:
    assert model.spec is not None
    spec = model.spec.inputs[name]
    kind: Any = KINDS[tensor.dtype.kind] if name in model.parameters else Tensor
    shape = "" if name in model.parameters else f"{format_dims(tensor.shape)}. "
    description = shape + describe_input(model, name)
    if name in others:  # a tensor of this block, or a reference
        kind |= str
    if tensor.required and not spec.only_for and name not in replaced:
        return kind, Field(alias=name, description=description)
    return kind | None, Field(spec.default, alias=name, description=description)


def answer_fields(model: Model, source: InputSource[Any]) -> list[tuple[Any, Any]]:
    """The fields of an answer, for ``model_class``; those of ``source`` are behind the outputs."""
    assert model.spec is not None
    fields: list[tuple[Any, Any]] = [(str, Field(alias="block"))]
    for name, tensor in model.outputs.items():
        kind: Any = Numbers | LargestWeights if name == "weights" else Numbers
        description = f"{format_dims(tensor.shape)}. {model.spec.outputs[name].description}"
        fields.append((kind | Absent, Field(None, alias=name, description=description)))
        if name in WEIGHTS:
            description = f"{name} = uint8 * {name}{SCALE}, where weights_dtype is uint8"
            fields.append((float | Absent, Field(None, alias=name + SCALE, description=description)))
    for name, output in derived_outputs(model.signature).items():
        description = f"{format_dims(derived_shape(model.signature, output))}. {output.description} {ON_REQUEST}"
        fields.append((Numbers | Absent, Field(None, alias=name, description=description)))
    return [*fields, *source.answered_for(model).values()]


def model_class(name: str, base: type[BaseModel], fields: list[tuple[Any, Any]]) -> type[BaseModel]:
    """A model whose fields are known by their aliases, which may be any text."""
    numbered: dict[str, Any] = {f"field_{index}": field for index, field in enumerate(fields)}
    return create_model(name, __base__=base, **numbered)
