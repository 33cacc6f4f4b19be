"""The native API's routes that read: ``/v1/attention`` lists the blocks, ``/v1/attention/{block}`` describes one."""

from collections.abc import Sequence

from fastapi import APIRouter, Request

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
    PlaceholderDescription,
    TokenizerDescription,
)
from service.ort.placement import provider_label
from service.repository.repository import Repository
from service.selection.derived import derived_outputs, derived_shape
from service.tensors.bfloat16 import dtype_name
from service.tensors.dims import Dim, symbol
from service.tensors.spec import TensorSpec

OTHER = {"block", "version", "inputs", "outputs"}  # fields of a specification that differ in a description

router = APIRouter(prefix="/v1/attention", tags=["attention"])


@router.get("", summary="List the blocks", responses=problems(503))
async def list_blocks(request: Request) -> Blocks:
    repository: Repository = request.app.state.repository
    repository.must_be_ready()
    blocks = repository.blocks.items()
    return Blocks(
        blocks=[BlockLine(block=name, **model.spec.model_dump(exclude=OTHER)) for name, model in blocks if model.spec]
    )


@router.get("/{block}", summary="Describe a block", responses=problems(404, 503))
async def describe_block(block: str, request: Request) -> BlockDescription:
    model: Model = request.app.state.repository.block(block)
    spec = model.spec
    assert spec is not None
    derived = derived_outputs(model.signature).items()
    return BlockDescription(
        block=model.name,
        version=model.version,
        **spec.model_dump(exclude=OTHER),
        inputs=[_input(model, name, tensor) for name, tensor in model.inputs.items() if name not in model.parameters],
        parameters=[
            ParameterDescription(name=name, dtype=str(tensor.dtype), **spec.inputs[name].model_dump())
            for name, tensor in model.parameters.items()
        ],
        outputs=[
            _output(name, dtype_name(tensor.dtype), tensor.shape, spec.outputs[name].description)
            for name, tensor in model.outputs.items()
        ],
        tokenizer=_tokenizer(model),
        preprocessor=describe_preprocessor(model),
        generate=model.generate,
        generate_refused=model.generate_refused,
        interventions=model.interventions,
        interventions_refused=model.interventions_refused,
        derived=[
            _output(name, "float32", derived_shape(model.signature, output), output.description)
            for name, output in derived
        ],
        providers=model.providers,
        nodes={
            graph: {provider_label(provider): dict(nodes) for provider, nodes in counts.items()}
            for graph, counts in model.placement.items()
        },
    )


def _input(model: Model, name: str, tensor: TensorSpec) -> InputDescription:
    dtype = dtype_name(tensor.dtype)
    return InputDescription(
        name=name,
        dtype=f"{dtype} or bool" if name in model.masks else dtype,
        shape=_shape(tensor.shape),
        required=tensor.required,
        description=describe_input(model, name),
    )


def _output(name: str, dtype: str, dims: Sequence[Dim], description: str) -> OutputDescription:
    return OutputDescription(name=name, dtype=dtype, shape=_shape(dims), description=description)


def _tokenizer(model: Model) -> TokenizerDescription | None:
    if model.tokenizer is None:
        return None
    return TokenizerDescription(
        max_tokens=model.max_tokens("input_ids"),
        truncates_to=model.tokenizer.max_length,
        next_tokens=model.signature.predicts_tokens,
        placeholders=[
            PlaceholderDescription(input=name, token=model.tokenizer.token(one.token), id=one.token, count=one.count)
            for name, one in model.signature.placeholders.items()
        ],
    )


def _shape(dims: Sequence[Dim]) -> list[str | int]:
    return [int(symbol(dim)) if symbol(dim).isdecimal() else symbol(dim) for dim in dims]
