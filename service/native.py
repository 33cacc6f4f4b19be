"""The native face: ``/v1/attention`` lists, describes and runs the blocks."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from starlette.routing import Route
from starlette.types import Receive

from service.attend import decode, prepare, work
from service.bfloat16 import name_of
from service.body import Body, Headers, hold_json, receive_body
from service.card import Scalar
from service.endpoint import JSON, Endpoint, Fields, Pieces
from service.engine import Engine
from service.json_write import filled
from service.model import Model, Tensor
from service.placement import short
from service.repository import Repository
from service.settings import Settings
from service.shape import symbol
from service.timing import Timing
from service.turns import at_once, in_turns
from service.work import Work

router = APIRouter(prefix="/v1/attention", tags=["attention"])


class BlockLine(BaseModel):
    """One block of the list."""

    block: str
    title: str
    description: str
    formula: str = Field(description="LaTeX")


class Blocks(BaseModel):
    blocks: list[BlockLine]


class InputDescription(BaseModel):
    name: str
    dtype: str
    shape: list[str | int] = Field(description="numbers and symbols; the same symbol is the same size everywhere")
    required: bool
    description: str


class ParameterDescription(BaseModel):
    name: str
    dtype: str
    default: Scalar | None
    description: str


class OutputDescription(BaseModel):
    name: str
    dtype: str
    shape: list[str | int]
    description: str


class BlockDescription(BlockLine):
    """Everything a client needs to call a block."""

    version: int
    source: str
    config: dict[str, Any]
    weights: str = Field(description="where learned weights are from: a file, or a seed")
    inputs: list[InputDescription]
    parameters: list[ParameterDescription]
    outputs: list[OutputDescription]
    tolerance: dict[str, float] = Field(description="largest absolute error against float64 allowed at export")
    verified: str = Field(description="where that was found right at export, and how")
    providers: list[str] = Field(description="what the ONNX Runtime session runs on")
    nodes: dict[str, dict[str, dict[str, int]]] = Field(
        description="where the nodes of each graph run: graph, provider, operator, how many"
    )
    example: dict[str, Any] = Field(description="a body to POST here")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documentation of errors."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def _repository(request: Request) -> Repository:
    repository: Repository = request.app.state.repository
    return repository


Models = Annotated[Repository, Depends(_repository)]


@router.get("", summary="List the blocks", responses=problems(503))
async def list_blocks(repository: Models) -> Blocks:
    repository.must_be_ready()
    return Blocks(blocks=[BlockLine(**_line(model)) for model in repository.blocks.values()])


@router.get("/{block}", summary="Describe a block", responses=problems(404, 503))
async def describe_block(block: str, repository: Models) -> BlockDescription:
    model = repository.block(block)
    card = model.card
    assert card is not None
    placed = model.placement.items()
    return BlockDescription(
        **_line(model),
        version=model.version,
        source=card.source,
        config=card.config,
        weights=card.weights,
        inputs=[
            InputDescription(
                name=name,
                dtype=f"{name_of(of.dtype)} or bool" if card.inputs[name].mask else name_of(of.dtype),
                shape=_shape(of),
                required=of.required,
                description=card.inputs[name].description,
            )
            for name, of in model.inputs.items()
            if name not in model.parameters
        ],
        parameters=[
            ParameterDescription(
                name=name,
                dtype=str(of.dtype),
                default=card.inputs[name].default,
                description=card.inputs[name].description,
            )
            for name, of in model.parameters.items()
        ],
        outputs=[
            OutputDescription(
                name=name, dtype=name_of(of.dtype), shape=_shape(of), description=card.outputs[name].description
            )
            for name, of in model.outputs.items()
        ],
        tolerance=card.tolerance,
        verified=card.verified,
        providers=model.providers,
        nodes={graph: {short(provider): dict(nodes) for provider, nodes in of.items()} for graph, of in placed},
        example=card.example,
    )


class Attend(Endpoint):
    """Runs a block on the tensors of the body."""

    face = "v1"

    def model(self, path: Mapping[str, Any]) -> Model:
        return self.repository.block(path["block"])

    async def answer(
        self, model: Model, headers: Headers, receive: Receive, timing: Timing
    ) -> tuple[Work, Pieces, Fields]:
        hold_json(headers)
        body = await receive_body(receive, headers, self.settings.max_body_bytes)
        timing.start()
        most, measured = self.settings.max_memory_bytes, self.engine.measured
        asked = await measured(self.decoding, len(body), decode, body, model, most)
        todo = work(asked, model, self.deadline(headers, timing))
        timing.lap("decode")
        found = await self.run(todo, timing, receive)
        frame, lists = await measured(self.preparing, asked.form.numbers, prepare, asked, found)
        pieces = await in_turns(self.encoding, asked.form.numbers, filled(frame, lists))
        timing.lap("encode")
        return todo, [*pieces], JSON

    def first(self, headers: Headers, length: int) -> int:
        hold_json(headers)
        return length

    def short(
        self, model: Model, _headers: Headers, content: bytes, _attached: Body, timing: Timing
    ) -> tuple[Work, Pieces, Fields] | None:
        is_short, decoding = self.engine.is_short, self.decoding.expected(len(content))
        if len(content) > self.settings.max_body_bytes or not is_short(decoding):
            return None
        asked = decode(content, model, self.settings.max_memory_bytes)
        todo = work(asked, model)
        encoding = self.encoding.expected(asked.form.numbers)
        if not is_short(decoding + todo.expected + encoding):
            return None
        timing.lap("decode")
        found = self.engine.run_here(todo)
        timing.lap_as(0, todo.computed)
        pieces = at_once(filled(*prepare(asked, found)))
        timing.lap("encode")
        return todo, [*pieces], JSON


def routes(repository: Repository, settings: Settings, engine: Engine) -> list[Route]:
    """The one that runs blocks; the documentation has a path for each block instead."""
    attend = Attend(repository, settings, engine)
    return [Route("/v1/attention/{block}", attend, methods=["POST"], include_in_schema=False)]


def _line(model: Model) -> dict[str, str]:
    card = model.card
    assert card is not None
    return {"block": model.name, "title": card.title, "description": card.description, "formula": card.formula}


def _shape(of: Tensor) -> list[str | int]:
    return [
        dim if isinstance(dim, int) else int(symbol(dim)) if symbol(dim).isdecimal() else symbol(dim)
        for dim in of.shape
    ]
