"""The native API's routes that read: ``/v1/attention`` lists the blocks, ``/v1/attention/{block}`` describes one."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from service.model.masks import describe_input
from service.model.model import Model
from service.native.openapi import problems
from service.native.preprocessor_schema import describe_preprocessor
from service.native.schemas import (
    BlockDescription,
    BlockLine,
    Blocks,
    InputDescription,
    OutputDescription,
    ParameterDescription,
    TokenizerDescription,
)
from service.ort.placement import provider_label
from service.repository.repository import Repository
from service.selection.derived import derived_outputs, derived_shape
from service.tensors.bfloat16 import dtype_name
from service.tensors.dims import Dim, symbol

# Fields of a block's specification that are shown as they are.
LINE = {"title", "description", "formula", "weights"}
DETAILS = {"source", "config", "tolerance", "verified", "example"}

router = APIRouter(prefix="/v1/attention", tags=["attention"])


def _repository(request: Request) -> Repository:
    repository: Repository = request.app.state.repository
    return repository


RepositoryParam = Annotated[Repository, Depends(_repository)]


@router.get("", summary="List the blocks", responses=problems(503))
async def list_blocks(repository: RepositoryParam) -> Blocks:
    repository.must_be_ready()
    blocks = repository.blocks.items()
    return Blocks(
        blocks=[BlockLine(block=name, **model.spec.model_dump(include=LINE)) for name, model in blocks if model.spec]
    )


@router.get("/{block}", summary="Describe a block", responses=problems(404, 503))
async def describe_block(block: str, repository: RepositoryParam) -> BlockDescription:
    model = repository.block(block)
    spec = model.spec
    assert spec is not None
    return BlockDescription(
        block=model.name,
        version=model.version,
        **spec.model_dump(include=LINE | DETAILS),
        inputs=[
            InputDescription(
                name=name,
                dtype=f"{dtype_name(tensor.dtype)} or bool" if spec.inputs[name].mask else dtype_name(tensor.dtype),
                shape=_shape(tensor.shape),
                required=tensor.required,
                description=describe_input(model, name),
            )
            for name, tensor in model.inputs.items()
            if name not in model.parameters
        ],
        parameters=[
            ParameterDescription(
                name=name,
                dtype=str(tensor.dtype),
                default=spec.inputs[name].default,
                description=spec.inputs[name].description,
            )
            for name, tensor in model.parameters.items()
        ],
        outputs=[
            OutputDescription(
                name=name,
                dtype=dtype_name(tensor.dtype),
                shape=_shape(tensor.shape),
                description=spec.outputs[name].description,
            )
            for name, tensor in model.outputs.items()
        ],
        tokenizer=_tokenizer(model),
        preprocessor=describe_preprocessor(model),
        derived=[
            OutputDescription(
                name=name,
                dtype="float32",
                shape=_shape(derived_shape(model.signature, output)),
                description=output.description,
            )
            for name, output in derived_outputs(model.signature).items()
        ],
        providers=model.providers,
        nodes={
            graph: {provider_label(provider): dict(nodes) for provider, nodes in counts.items()}
            for graph, counts in model.placement.items()
        },
    )


def _tokenizer(model: Model) -> TokenizerDescription | None:
    if model.tokenizer is None:
        return None
    return TokenizerDescription(
        max_tokens=model.max_tokens("input_ids"),
        truncates_to=model.tokenizer.max_length,
        next_tokens=model.signature.predicts_tokens,
    )


def _shape(dims: Sequence[Dim]) -> list[str | int]:
    return [
        dim if isinstance(dim, int) else int(symbol(dim)) if symbol(dim).isdecimal() else symbol(dim) for dim in dims
    ]
