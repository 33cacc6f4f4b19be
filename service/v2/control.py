"""The model repository extension: index, load, unload; what clients may change is a setting."""

import asyncio
import binascii
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError

from service.body import receive_body
from service.errors import HeedError, Malformed, NotAllowed, NotReady, Unsupported
from service.model import CANONICAL
from service.repository import Repository
from service.settings import Settings
from service.terms import Terms
from service.v2 import config, wire
from service.v2.paths import OF_MODEL, Name

M = TypeVar("M", bound=BaseModel)

FILE = "file:"
CONTROL_FAILURES: dict[int | str, dict[str, Any]] = {
    400: {"model": wire.Error, "description": "Not the protocol, or the model failed to load"},
    404: {"model": wire.Error, "description": "No such model"},
    503: {"model": wire.Error, "description": "Not allowed in this model control mode, or models are being loaded"},
}

router = APIRouter(prefix="/v2/repository", tags=["Open Inference Protocol"])


def _documented(of: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """The body, which may be missing altogether, as FastAPI cannot read it from a signature."""
    content = {"application/json": {"schema": of.model_json_schema(), "example": example}}
    return {"requestBody": {"required": False, "content": content}}


@router.post(
    "/index",
    summary="Every model, and its state",
    response_model_exclude_none=True,
    responses={400: CONTROL_FAILURES[400]},
    openapi_extra=_documented(wire.IndexRequest, {"ready": True}),
)
async def index(request: Request) -> list[wire.ModelState]:
    asked = await body(request, wire.IndexRequest)
    states = await asyncio.to_thread(request.app.state.repository.index)
    return [
        wire.ModelState(
            name=of.name,
            version=None if of.version is None else str(of.version),
            state=of.state,
            reason=of.reason,
        )
        for of in states
        if of.state == "READY" or not asked.ready
    ]


@router.post(
    OF_MODEL + "/load",
    summary="Load a model, or load it anew",
    response_class=Response,
    responses=CONTROL_FAILURES,
    openapi_extra=_documented(wire.ControlRequest, {"parameters": {"config": '{"max_batch_size": 8}'}}),
)
async def load(model: Name, request: Request) -> Response:
    must_be_allowed(request, "explicit model load / unload is not allowed if polling is enabled")
    asked = await body(request, wire.ControlRequest)
    try:
        await asyncio.to_thread(_load, request.app.state.repository, model, asked.parameters)
    except Malformed as error:
        raise Malformed(error.detail.replace("failed to load:", f"failed to load '{model}',")) from None
    return Response()


@router.post(
    OF_MODEL + "/unload",
    summary="Serve a model no more",
    response_class=Response,
    responses=CONTROL_FAILURES,
    openapi_extra=_documented(wire.ControlRequest, {"parameters": {"unload_dependents": False}}),
)
async def unload(model: Name, request: Request) -> Response:
    must_be_allowed(request, "explicit model load / unload is not allowed if polling is enabled")
    await body(request, wire.ControlRequest)
    await asyncio.to_thread(request.app.state.repository.unload_model, model)
    return Response()


@router.post("/{repository}/index", include_in_schema=False)
@router.post("/{repository}/models/{model}/load", include_in_schema=False)
@router.post("/{repository}/models/{model}/unload", include_in_schema=False)
async def of_another_repository(repository: str) -> Response:
    raise Unsupported(f"there is one repository, without a name; got '{repository}'")


async def body(request: Request, of: type[M]) -> M:
    """The JSON body of a request for control; an empty one is all defaults.

    Raises:
        Malformed: it is not of the documented form.
    """
    settings: Settings = request.app.state.settings
    headers = request.scope["state"]["headers"]
    content = bytes(await receive_body(request.receive, headers, settings.max_body_bytes))
    try:
        return of.model_validate_json(content.strip() or b"{}")
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the body"
        raise Malformed(f"failed to parse the request JSON buffer: {where}: {problem['msg']}") from None


def must_be_allowed(request: Request, refusal: str) -> None:
    """Raises NotAllowed unless clients may control this server, and NotReady while models are being loaded."""
    settings: Settings = request.app.state.settings
    if settings.model_control_mode != "explicit":
        raise NotAllowed(f"{refusal}, or without HEED_MODEL_CONTROL_MODE=explicit")
    request.app.state.repository.must_be_ready()


def _load(repository: Repository, name: str, parameters: Mapping[str, Any]) -> None:
    files = {key: value for key, value in parameters.items() if key.startswith(FILE)}
    unknown = [key for key in parameters if key not in files and key != "config"]
    if unknown:
        raise Malformed(f"failed to load: unknown parameter {unknown[0]!r}")
    if files and "config" not in parameters:
        raise Malformed("failed to load: files need a config beside them")
    terms = repository.terms
    if "config" in parameters:
        terms = config.override(parameters["config"], _now(repository, name), terms)
    if not files:
        repository.load_model(name, terms)
        return
    if not name.strip(".") or "/" in name or "\\" in name or "\0" in name:
        raise Malformed("failed to load: this name is no name of a folder")
    try:
        _load_files(repository, name, files, terms)
    except OSError as error:
        raise NotReady(f"failed to load '{name}', its files cannot be written: {error.strerror}") from None


def _load_files(repository: Repository, name: str, files: Mapping[str, Any], terms: Terms) -> None:
    """Raises OSError where there is no room for them."""
    with tempfile.TemporaryDirectory(prefix="heed-") as folder:
        shelf: dict[int, Path] = {}
        for key, value in files.items():
            version, file = _file(key)
            place = Path(folder, name, version)
            place.mkdir(parents=True, exist_ok=True)
            (place / file).write_bytes(_decoded(key, value))
            shelf[int(version)] = place
        repository.load_model(name, terms, {v: place for v, place in shelf.items() if (place / CANONICAL).exists()})


def _now(repository: Repository, name: str) -> dict[str, Any]:
    try:
        model = repository.model(name)
    except HeedError:
        return {"name": name, "platform": config.PLATFORM, "backend": config.BACKEND}
    return config.config(model, repository.terms_of(name))


def _file(key: str) -> tuple[str, str]:
    """``file:1/model.onnx`` -> 1 and model.onnx, and nothing that leads out of that folder."""
    version, _, file = key.removeprefix(FILE).partition("/")
    if not (version.isascii() and version.isdecimal() and int(version)):
        raise Malformed(f"failed to load: expected file:<version>/<name>, got {key!r}")
    if not file.strip(".") or "/" in file or "\\" in file or "\0" in file:
        raise Malformed(f"failed to load: {file!r} is no name of a file in the version's folder")
    return version, file


def _decoded(key: str, value: Any) -> bytes:
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except (TypeError, ValueError):
        raise Malformed(f"failed to load: {key!r} is not base64") from None
