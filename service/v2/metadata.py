"""The server's and the models' metadata, readiness, configuration and statistics."""

from collections.abc import Sequence
from importlib.metadata import version as version_of
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from service.metrics import Metrics
from service.model.masks import describe_input
from service.model.model import Model
from service.ort import placement
from service.repository.repository import Repository
from service.selection.derived import derived_outputs, derived_shape
from service.settings import Settings
from service.telemetry.statistics import Statistics, Tally, statistics
from service.tensors.dims import format_dims
from service.tensors.spec import TensorSpec
from service.v2 import model_config, schemas
from service.v2.datatypes import NAMES
from service.v2.openapi import errors
from service.v2.paths import OF_MODEL, OF_VERSION, Name, Number
from service.v2.signature import wire_shape

EXTENSIONS = [
    "classification",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
]
CONTROL_EXTENSIONS = ["model_repository", "logging"]  # offered in model control mode explicit
ON_REQUEST = " (output on request)"

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])


async def _repository(request: Request) -> Repository:
    repository: Repository = request.app.state.repository
    return repository


ServedModels = Annotated[Repository, Depends(_repository)]


@router.get("", summary="The server", description="Its name, version and supported extensions.")
async def server(request: Request) -> schemas.ServerMetadata:
    settings: Settings = request.app.state.settings
    provider = request.app.state.repository.provider
    return schemas.ServerMetadata(
        name="heed",
        version=version_of("heed-attention"),
        extensions=EXTENSIONS + (CONTROL_EXTENSIONS if settings.model_control_mode == "explicit" else []),
        provider=provider.name if provider else "",
        provider_reason=provider.reason if provider else "",
    )


@router.get("/models", summary="The models that are loaded", responses=errors(503))
async def models(repository: ServedModels) -> schemas.Models:
    repository.must_be_ready()
    return schemas.Models(models=list(repository.models))


@router.get("/models/stats", summary="Statistics of every model", responses=errors(503))
async def all_statistics(repository: ServedModels, request: Request) -> schemas.Statistics:
    repository.must_be_ready()
    loaded = [model for versions in repository.models.values() for model in versions.values()]
    return await _statistics(loaded, request)


@router.get(OF_MODEL + "/stats", summary="Statistics of a model", responses=errors(404, 503))
async def model_statistics(model: Name, repository: ServedModels, request: Request) -> schemas.Statistics:
    repository.model(model)
    return await _statistics(list(repository.models[model].values()), request)


@router.get(OF_VERSION + "/stats", summary="Statistics of a version", responses=errors(404, 503))
async def version_statistics(
    model: Name, version: Number, repository: ServedModels, request: Request
) -> schemas.Statistics:
    return await _statistics([repository.model(model, version)], request)


@router.get(OF_MODEL, summary="A model's metadata", responses=errors(404, 503))
async def metadata(model: Name, repository: ServedModels) -> schemas.ModelMetadata:
    return _metadata(repository.model(model), repository)


@router.get(OF_VERSION, summary="A version's metadata", responses=errors(404, 503))
async def version_metadata(model: Name, version: Number, repository: ServedModels) -> schemas.ModelMetadata:
    return _metadata(repository.model(model, version), repository)


@router.get(OF_MODEL + "/ready", summary="Is a model ready?", responses=errors(404, 503))
async def model_ready(model: Name, repository: ServedModels) -> schemas.ModelReady:
    return schemas.ModelReady(name=repository.model(model).name, ready=True)


@router.get(OF_VERSION + "/ready", summary="Is a version ready?", responses=errors(404, 503))
async def version_ready(model: Name, version: Number, repository: ServedModels) -> schemas.ModelReady:
    return schemas.ModelReady(name=repository.model(model, version).name, ready=True)


@router.get(OF_MODEL + "/config", summary="A model's configuration", responses=errors(404, 503))
async def configuration(model: Name, repository: ServedModels) -> dict[str, Any]:
    return model_config.describe(repository.model(model), repository.options_for(model))


@router.get(OF_VERSION + "/config", summary="A version's configuration", responses=errors(404, 503))
async def version_configuration(model: Name, version: Number, repository: ServedModels) -> dict[str, Any]:
    return model_config.describe(repository.model(model, version), repository.options_for(model))


def _metadata(model: Model, repository: Repository) -> schemas.ModelMetadata:
    spec = model.spec
    nodes = "; ".join(f"{graph}: {placement.format_placement(nodes)}" for graph, nodes in model.placement.items())
    properties = {"providers": ", ".join(model.providers), "nodes": nodes}
    if spec:
        properties |= {"title": spec.title, "formula": spec.formula, "source": spec.source}
        properties["learned weights"] = spec.weights
        for name, tensor in model.inputs.items():
            label = name if tensor.required else f"{name} (optional)"
            properties[label] = f"{_type(tensor)}. {describe_input(model, name)}"
        for name in spec.on_request:
            properties[name + ON_REQUEST] = f"{_type(model.outputs[name])}. {spec.outputs[name].description}"
        for name, output in derived_outputs(model.signature).items():
            dims = format_dims(derived_shape(model.signature, output))
            properties[name + ON_REQUEST] = f"FP32 {dims}. {output.description}"
    return schemas.ModelMetadata(
        name=model.name,
        versions=list(map(str, repository.models.get(model.name, {model.version: model}))),
        platform=model_config.PLATFORM,
        inputs=list(map(_tensor, model_config.listed_inputs(model))),
        outputs=[_tensor(model.outputs[name]) for name in model.all_outputs],
        properties=properties,
    )


def _type(tensor: TensorSpec) -> str:
    return f"{NAMES[tensor.dtype]} {format_dims(tensor.shape)}"


def _tensor(tensor: TensorSpec) -> schemas.TensorMetadata:
    return schemas.TensorMetadata(name=tensor.name, datatype=NAMES[tensor.dtype], shape=wire_shape(tensor))


async def _statistics(models: Sequence[Model], request: Request) -> schemas.Statistics:
    """The statistics of ``models``, summed over all workers."""
    metrics: Metrics = request.app.state.metrics
    counted = statistics(await metrics.totals(), [(model.name, model.version) for model in models])
    return schemas.Statistics(model_stats=list(map(_model_statistics, models, counted)))


def _model_statistics(model: Model, counted: Statistics) -> schemas.ModelStatistics:
    return schemas.ModelStatistics(
        name=model.name,
        version=str(model.version),
        last_inference=counted.last_inference,
        inference_count=counted.inferences,
        execution_count=counted.executions,
        inference_stats=schemas.InferStatistics(
            success=counted.success, fail=counted.fail, queue=counted.stages["queue"], **_compute(counted.stages)
        ),
        batch_stats=[
            schemas.BatchStatistics(batch_size=rows, **_compute(stages)) for rows, stages in counted.batches.items()
        ],
    )


def _compute(stages: dict[str, Tally]) -> dict[str, Tally]:
    names = {"compute_input": "decode", "compute_infer": "compute", "compute_output": "encode"}
    return {name: stages[stage] for name, stage in names.items()}
