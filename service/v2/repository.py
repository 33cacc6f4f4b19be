"""The model repository extension: the index, and loading and unloading models where the settings allow it."""

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError

from service.budget import Reservation
from service.codec.json_reader import base64_bytes
from service.errors import HeedError, Malformed, NotAllowed, NotReady, Unsupported
from service.http.auth import ApiKeyAuth
from service.http.body import CountedReceive, receive_body
from service.model.spec import CANONICAL
from service.repository.changes import Requester
from service.repository.index import State
from service.repository.options import ServingOptions
from service.repository.repository import Repository
from service.repository.versions import version_number
from service.settings import Settings
from service.telemetry.logs import peer
from service.threads import in_thread
from service.v2 import model_config, schemas
from service.v2.model_config import first_problem
from service.v2.openapi import errors, json_body
from service.v2.paths import OF_MODEL, Name

M = TypeVar("M", bound=BaseModel)

FILE = "file:"
MAX_CONTROL_BYTES = 1 << 20  # of a control request's body; that of a load may have max_body_bytes, as it brings files
LOAD_COPIES = 2  # of a load's body in memory: its text, and its decoded files

router = APIRouter(prefix="/v2/repository", tags=["Open Inference Protocol"])


@router.post(
    "/index",
    summary="All models and their states",
    response_model=list[schemas.ModelState],
    response_model_exclude_none=True,
    responses=errors(400),
    openapi_extra=json_body(schemas.IndexRequest, {"ready": True}),
)
async def index(request: Request) -> list[State]:
    filters = await read_body(request, schemas.IndexRequest)
    states = await asyncio.to_thread(request.app.state.repository.index)
    return [version for version in states if version.state == "READY" or not filters.ready]


@router.post(
    OF_MODEL + "/load",
    summary="Load a model, or reload it",
    response_class=Response,
    responses=errors(400, 403, 404, 415, 503),
    openapi_extra=json_body(schemas.ControlRequest, {"parameters": {"config": '{"max_batch_size": 8}'}}),
)
async def load(model: Name, request: Request) -> Response:
    require_control(request, "explicit model load / unload is not allowed if polling is enabled")
    state = request.app.state
    reservation = Reservation(state.budget)
    try:
        control = await read_body(request, schemas.ControlRequest, state.settings.max_body_bytes, reservation)
        await in_thread(_load, state.repository, model, control.parameters, requester(request))
    except Malformed as error:
        raise Malformed(error.detail.replace("failed to load:", f"failed to load '{model}',")) from None
    finally:
        reservation.release()
    return Response()


@router.post(
    OF_MODEL + "/unload",
    summary="Unload a model; one that is not loaded is no error",
    response_class=Response,
    responses=errors(400, 403, 415, 503),
    openapi_extra=json_body(schemas.ControlRequest, {"parameters": {"unload_dependents": False}}),
)
async def unload(model: Name, request: Request) -> Response:
    require_control(request, "explicit model load / unload is not allowed if polling is enabled")
    await read_body(request, schemas.ControlRequest)
    await in_thread(request.app.state.repository.unload_model, model, requester(request))
    return Response()


@router.post("/{repository}/index", include_in_schema=False)
@router.post("/{repository}/models/{model}/load", include_in_schema=False)
@router.post("/{repository}/models/{model}/unload", include_in_schema=False)
async def named_repository(repository: str) -> Response:
    raise Unsupported(f"there is one repository, without a name; got '{repository}'")


async def read_body(
    request: Request, schema: type[M], max_bytes: int = MAX_CONTROL_BYTES, reservation: Reservation | None = None
) -> M:
    """The JSON body of a control request as ``schema``; an empty body is all defaults.

    The memory that it takes is added to ``reservation``, if there is one.

    Raises:
        Malformed: it does not match the schema.
        TooLarge: it is longer than ``max_bytes`` bytes.
        TooMuchMemory, Overloaded: the memory budget has no room for it.
    """
    headers = request.scope["state"]["headers"]
    receive = CountedReceive(request.receive, reservation) if reservation else request.receive
    content = await receive_body(receive, headers, max_bytes, "of control requests")
    if reservation:
        reservation.add(LOAD_COPIES * len(content))
    try:
        return schema.model_validate_json(content.strip() or b"{}")
    except ValidationError as error:
        raise Malformed(f"failed to parse the request JSON buffer: {first_problem(error, 'the body')}") from None


def require_control(request: Request, refusal: str) -> None:
    """Check that clients may control this server.

    Raises:
        NotAllowed: the model control mode is not explicit; ``refusal`` begins the error's text.
        NotReady: models are still loading.
    """
    settings: Settings = request.app.state.settings
    if settings.model_control_mode != "explicit":
        raise NotAllowed(f"{refusal}, or without HEED_MODEL_CONTROL_MODE=explicit")
    request.app.state.repository.must_be_ready()


def requester(request: Request) -> Requester:
    """Who sent the request, for the log: the key's name, if there are keys, the address, and the request's id."""
    state = request.scope["state"]
    auth: ApiKeyAuth | None = request.app.state.auth
    key = auth.key_name(state["headers"]) if auth else None
    fields = {"by": "client", **peer(request.client), "request_id": state["request_id"].decode()}
    return {**fields, "key": key} if key else fields


def _load(repository: Repository, name: str, parameters: Mapping[str, Any], requester: Requester) -> None:
    files = {key: value for key, value in parameters.items() if key.startswith(FILE)}
    unknown = [key for key in parameters if key not in files and key != "config"]
    if unknown:
        raise Malformed(f"failed to load: unknown parameter {unknown[0]!r}")
    if files and "config" not in parameters:
        raise Malformed("failed to load: files need a config beside them")
    options = None
    if "config" in parameters:
        options = model_config.override(parameters["config"], _current_config(repository, name), repository.options)
    if options is None or not files:
        repository.load_model(name, options, requester=requester)
        return
    if not _is_file_name(name):
        raise Malformed("failed to load: this name is no name of a folder")
    try:
        _load_files(repository, name, files, options, requester)
    except OSError as error:
        raise NotReady(f"failed to load '{name}', its files cannot be written: {error.strerror}") from None


def _load_files(
    repository: Repository, name: str, files: Mapping[str, Any], options: ServingOptions, requester: Requester
) -> None:
    """Load a model from files in base64. Raises OSError if they cannot be written."""
    with tempfile.TemporaryDirectory(prefix="heed-") as folder:
        versions: dict[int, Path] = {}
        for key, value in files.items():
            version, file = _file(key)
            versions[int(version)] = path = Path(folder, name, version)
            path.mkdir(parents=True, exist_ok=True)
            (path / file).write_bytes(_decode(key, value))
        complete = {version: path for version, path in versions.items() if (path / CANONICAL).exists()}
        repository.load_model(name, options, complete, requester)


def _current_config(repository: Repository, name: str) -> dict[str, Any]:
    try:
        model = repository.model(name)
    except HeedError:
        return {"name": name, "platform": model_config.PLATFORM, "backend": model_config.BACKEND}
    return model_config.describe(model, repository.options_for(name))


def _file(key: str) -> tuple[str, str]:
    """``file:1/model.onnx`` -> 1 and model.onnx. Names that lead out of the version's folder are rejected."""
    version, _, file = key.removeprefix(FILE).partition("/")
    if not version_number(version):
        raise Malformed(f"failed to load: expected file:<version>/<name>, the version a number from 1, got {key!r}")
    if not _is_file_name(file):
        raise Malformed(f"failed to load: {file!r} is no name of a file in the version's folder")
    return version, file


def _is_file_name(name: str) -> bool:
    return bool(name.strip(".")) and "/" not in name and "\\" not in name and name.isprintable()


def _decode(key: str, value: Any) -> bytes:
    try:
        return base64_bytes(value)
    except (AttributeError, ValueError):
        raise Malformed(f"failed to load: {key!r} is not base64") from None
