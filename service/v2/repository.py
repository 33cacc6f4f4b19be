"""The model repository extension: the index, and loading and unloading models where the settings allow it."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from service.base.budget import Reservation
from service.base.cost import CostModel
from service.base.errors import HeedError, Malformed, NotAllowed, NotReady, Unsupported
from service.base.messages import size_words
from service.base.steps import drain
from service.base.threads import in_thread
from service.codec.json_reader import base64_bytes
from service.codec.json_slices import MIN_LONG_PART_BYTES, LongList, LongText, cut, part
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
from service.v2 import model_config, schemas
from service.v2.model_config import first_problem
from service.v2.openapi import errors, json_body
from service.v2.paths import OF_MODEL, Name

M = TypeVar("M", bound=BaseModel)

FILE = "file:"
MAX_CONTROL_BYTES = 1 << 16  # of a control request's body; that of a load may have max_body_bytes, as it brings files
MAX_CONTROL_FIELDS = 64  # of a control request, and of its parameters
MAX_CONFIG_BYTES = 1 << 16  # of a load's config
# Of a load's JSON beside its long texts: as many parameters as there may be, with names and short texts.
MAX_LOAD_JSON_BYTES = MAX_CONTROL_FIELDS * (MIN_LONG_PART_BYTES + 1024)
PARSE_ERROR = "failed to parse the request JSON buffer"

router = APIRouter(prefix="/v2/repository", tags=["Open Inference Protocol"])


@router.post(
    "/index",
    summary="All models and their states",
    response_model=list[schemas.ModelState],
    response_model_exclude_none=True,
    responses=errors(400, 503),
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
        content = await receive_control(request, state.settings.max_body_bytes, reservation)
        parts: Sequence[LongText | LongList] = ()
        if len(content) > MAX_CONTROL_BYTES:
            reservation.add(len(content))  # for the decoded files
            content, parts = await state.offload.run_cooperatively(
                CostModel(), len(content), cut(content, MAX_LOAD_JSON_BYTES, "a file is a parameter, a text in base64")
            )
        given = parse_control(content, schemas.ControlRequest, parts).parameters
        parameters = {name: part(value, parts) for name, value in given.items()}
        await in_thread(_load, state.repository, model, parameters, requester(request))
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
    raise Unsupported(f"expected an empty repository name, got '{repository}'")


async def read_body(request: Request, schema: type[M]) -> M:
    """The JSON body of a control request as ``schema``; an empty body is all defaults.

    The memory budget has the body until it is parsed.

    Raises:
        Malformed: it does not match the schema, or has too many fields.
        TooLarge: it is longer than ``MAX_CONTROL_BYTES``.
        TooMuchMemory, Overloaded: the memory budget has no room for it.
    """
    reservation = Reservation(request.app.state.budget)
    try:
        return parse_control(await receive_control(request, MAX_CONTROL_BYTES, reservation), schema)
    finally:
        reservation.release()


async def receive_control(request: Request, max_bytes: int, reservation: Reservation) -> bytes:
    """The body of a control request, of at most ``max_bytes`` bytes, which are added to ``reservation``.

    Raises:
        TooLarge, TooMuchMemory, Overloaded: as above.
    """
    receive = CountedReceive(request.receive, reservation)
    return await receive_body(receive, request.scope["state"]["headers"], max_bytes, "of control requests")


def parse_control(content: bytes, schema: type[M], parts: Sequence[LongText | LongList] = ()) -> M:
    """The JSON ``content``, of which ``parts`` were cut out, as ``schema``.

    Its fields are counted first, as pydantic makes an error of each wrong one.

    Raises:
        Malformed: it does not match the schema, or has too many fields.
    """
    try:
        document = from_json(content.strip() or b"{}")
    except ValueError as error:
        raise Malformed(f"{PARSE_ERROR}: the body: Invalid JSON: {error}") from None
    if not isinstance(document, dict):
        raise Malformed(f"{PARSE_ERROR}: the body: Input should be an object")
    parameters = document.get("parameters")
    for fields, name in ((document, "the body"), (parameters, "parameters")):
        if isinstance(fields, dict) and len(fields) > MAX_CONTROL_FIELDS:
            raise Malformed(f"{PARSE_ERROR}: {name}: {len(fields)} fields, more than the {MAX_CONTROL_FIELDS} allowed")
    for name, value in parameters.items() if isinstance(parameters, dict) else ():
        if isinstance(part(value, parts), list | dict | LongList):
            raise Malformed(f"{PARSE_ERROR}: parameters.{name}: expected a string, a number, true, false or null")
    try:
        return schema.model_validate(document)
    except ValidationError as error:
        raise Malformed(f"{PARSE_ERROR}: {first_problem(error, 'the body')}") from None


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
    """The request's sender, for the log: the key's name, if keys are set, the address, and the request's id."""
    state = request.scope["state"]
    auth: ApiKeyAuth | None = request.app.state.auth
    key = auth.key_name(state["headers"]) if auth else None
    fields = {"by": "client", **peer(request.client), "request_id": state["request_id"].decode()}
    return {**fields, "key": key} if key else fields


def _load(repository: Repository, name: str, parameters: Mapping[str, Any], requester: Requester) -> None:
    """Load a model by the ``parameters`` of the request: nothing, a config, or a config and files.

    Raises:
        Malformed: a parameter that is wrong.
        NotFound, Invalid, NotReady: there is no such model, it is no model, or its files cannot be written.
    """
    files = {key: value for key, value in parameters.items() if key.startswith(FILE)}
    options = None
    try:
        for key in parameters:
            if key not in files and key != "config":
                raise Malformed(f"unknown parameter {key!r}")
        if "config" in parameters:
            config = _config(parameters["config"])
            options = model_config.override(config, _current_config(repository, name), repository.options)
        elif files:
            raise Malformed("files require a config")
        if files and not _is_file_name(name):
            raise Malformed("this name is not a valid folder name")
        if options is not None and files:
            _load_files(repository, name, files, options, requester)
        else:
            repository.load_model(name, options, requester=requester)
    except Malformed as error:
        raise Malformed(f"failed to load '{name}', {error.detail}") from None


def _config(given: Any) -> Any:
    """The config of a load. Raises Malformed where it is too long, or not JSON."""
    text = given.content if isinstance(given, LongText) else given
    if isinstance(text, str | memoryview) and len(text) > MAX_CONFIG_BYTES:
        raise Malformed(f"config: expected at most {size_words(MAX_CONFIG_BYTES)}")
    try:
        return from_json(b'"%b"' % bytes(text)) if isinstance(text, memoryview) else text
    except ValueError as error:
        raise Malformed(f"config: Invalid JSON: {error}") from None


def _load_files(
    repository: Repository, name: str, files: Mapping[str, Any], options: ServingOptions, requester: Requester
) -> None:
    """Load a model from files in base64. Raises NotReady if they cannot be written."""
    try:
        with tempfile.TemporaryDirectory(prefix="heed-") as folder:
            versions: dict[int, Path] = {}
            for key, value in files.items():
                version, file = _file(key)
                versions[int(version)] = path = Path(folder, name, version)
                path.mkdir(parents=True, exist_ok=True)
                (path / file).write_bytes(_decode(key, value))
            complete = {version: path for version, path in versions.items() if (path / CANONICAL).exists()}
            repository.load_model(name, options, complete, requester)
    except OSError as error:
        raise NotReady(f"failed to load '{name}', its files cannot be written: {error.strerror}") from None


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
        raise Malformed(f"expected file:<version>/<name>, the version a number from 1, got {key!r}")
    if not _is_file_name(file):
        raise Malformed(f"{file!r} is not a valid file name")
    return version, file


def _is_file_name(name: str) -> bool:
    return bool(name.strip(".")) and "/" not in name and "\\" not in name and name.isprintable()


def _decode(key: str, value: Any) -> bytes | bytearray:
    try:
        return drain(value.base64()) if isinstance(value, LongText) else base64_bytes(value)
    except (AttributeError, ValueError):
        raise Malformed(f"{key}: invalid base64") from None
