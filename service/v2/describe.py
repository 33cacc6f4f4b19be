"""What the server and its models are and have done: metadata, readiness, configuration, statistics."""

from importlib.metadata import version as version_of
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from service import placement
from service.model import Model
from service.repository import Repository
from service.settings import Settings
from service.shape import written
from service.signature import free
from service.statistics import Tally
from service.v2 import config, wire
from service.v2.datatype import datatype
from service.v2.paths import OF_MODEL, OF_VERSION, Name, Number

NOT_FOUND: dict[int | str, dict[str, Any]] = {
    404: {"model": wire.Error, "description": "No such model or version"},
    503: {"model": wire.Error, "description": "Models are being loaded"},
}
EXTENSIONS = [
    "classification",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
]
CONTROLLED = ["model_repository", "logging"]  # work in model control mode explicit

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])


def _repository(request: Request) -> Repository:
    repository: Repository = request.app.state.repository
    return repository


Models = Annotated[Repository, Depends(_repository)]


@router.get("", summary="The server", description="Its name, version, and the extensions that work.")
async def server(request: Request) -> wire.ServerMetadata:
    settings: Settings = request.app.state.settings
    provider = request.app.state.repository.provider
    return wire.ServerMetadata(
        name=settings.server_name,
        version=version_of("heed-attention"),
        extensions=EXTENSIONS + (CONTROLLED if settings.model_control_mode == "explicit" else []),
        provider=provider.name if provider else "",
        provider_reason=provider.reason if provider else "",
    )


@router.get("/models", summary="The models that are loaded", responses={503: NOT_FOUND[503]})
async def models(repository: Models) -> wire.Models:
    repository.must_be_ready()
    return wire.Models(models=list(repository.models))


@router.get("/models/stats", summary="Statistics of every model", responses={503: NOT_FOUND[503]})
async def all_statistics(repository: Models) -> wire.Statistics:
    repository.must_be_ready()
    loaded = [model for versions in repository.models.values() for model in versions.values()]
    return wire.Statistics(model_stats=[_statistics(model) for model in loaded])


@router.get(OF_MODEL + "/stats", summary="Statistics of a model", responses=NOT_FOUND)
async def statistics(model: Name, repository: Models) -> wire.Statistics:
    repository.model(model)
    return wire.Statistics(model_stats=[_statistics(served) for served in repository.models[model].values()])


@router.get(OF_VERSION + "/stats", summary="Statistics of a version", responses=NOT_FOUND)
async def version_statistics(model: Name, version: Number, repository: Models) -> wire.Statistics:
    return wire.Statistics(model_stats=[_statistics(repository.model(model, version))])


@router.get(OF_MODEL, summary="A model's metadata", responses=NOT_FOUND)
async def metadata(model: Name, repository: Models) -> wire.ModelMetadata:
    return _metadata(repository.model(model), repository)


@router.get(OF_VERSION, summary="A version's metadata", responses=NOT_FOUND)
async def version_metadata(model: Name, version: Number, repository: Models) -> wire.ModelMetadata:
    return _metadata(repository.model(model, version), repository)


@router.get(OF_MODEL + "/ready", summary="Is a model ready?", responses=NOT_FOUND)
async def ready(model: Name, repository: Models) -> wire.ModelReady:
    return wire.ModelReady(name=repository.model(model).name, ready=True)


@router.get(OF_VERSION + "/ready", summary="Is a version ready?", responses=NOT_FOUND)
async def version_ready(model: Name, version: Number, repository: Models) -> wire.ModelReady:
    return wire.ModelReady(name=repository.model(model, version).name, ready=True)


@router.get(OF_MODEL + "/config", summary="A model's configuration", responses=NOT_FOUND)
async def configuration(model: Name, repository: Models) -> dict[str, Any]:
    return config.config(repository.model(model), repository.terms_of(model))


@router.get(OF_VERSION + "/config", summary="A version's configuration", responses=NOT_FOUND)
async def version_configuration(model: Name, version: Number, repository: Models) -> dict[str, Any]:
    return config.config(repository.model(model, version), repository.terms_of(model))


def _metadata(model: Model, repository: Repository) -> wire.ModelMetadata:
    card = model.card
    nodes = "; ".join(f"{graph}: {placement.written(of)}" for graph, of in model.placement.items())
    properties = {"providers": ", ".join(model.providers), "nodes": nodes}
    if card:
        properties |= {"title": card.title, "formula": card.formula, "source": card.source}
        for name, of in model.inputs.items():
            said = f"{datatype(of.dtype).name} {written(of.shape)}. {card.inputs[name].description}"
            properties[name if of.required else f"{name} (optional)"] = said
    return wire.ModelMetadata(
        name=model.name,
        versions=list(map(str, repository.models.get(model.name, {model.version: model}))),
        platform=config.PLATFORM,
        inputs=[
            wire.TensorMetadata(name=of.name, datatype=datatype(of.dtype).name, shape=free(of))
            for of in config.inputs(model)
        ],
        outputs=[
            wire.TensorMetadata(name=of.name, datatype=datatype(of.dtype).name, shape=free(of))
            for of in model.outputs.values()
        ],
        properties=properties,
    )


def _statistics(model: Model) -> wire.ModelStatistics:
    now = model.statistics.snapshot()
    return wire.ModelStatistics(
        name=model.name,
        version=str(model.version),
        last_inference=now.last_inference,
        inference_count=now.inferences,
        execution_count=now.executions,
        inference_stats=wire.InferStatistics(
            success=_duration(now.success),
            fail=_duration(now.fail),
            queue=_duration(now.stages["queue"]),
            **_compute(now.stages),
        ),
        batch_stats=[wire.BatchStatistics(batch_size=rows, **_compute(of)) for rows, of in now.batches.items()],
    )


def _compute(stages: dict[str, Tally]) -> dict[str, wire.Duration]:
    named = {"compute_input": "decode", "compute_infer": "compute", "compute_output": "encode"}
    return {name: _duration(stages[stage]) for name, stage in named.items()}


def _duration(of: Tally) -> wire.Duration:
    return wire.Duration(count=of.count, ns=of.ns)
