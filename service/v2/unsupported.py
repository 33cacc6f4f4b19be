"""Extensions that are not offered: shared memory and trace settings, with the answers that clients expect."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from service.base.errors import Unsupported
from service.v2.metadata import ServedModels
from service.v2.repository import read_body

NO_TRACE = {"trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0", "trace_file": ""}

router = APIRouter(prefix="/v2", include_in_schema=False)


class TraceSettings(BaseModel, extra="allow"):
    """Any fields."""


async def status() -> list[str]:
    """No region of shared memory is registered."""
    return []


async def register() -> Response:
    raise Unsupported("shared memory is not supported; send tensors in the body, as binary data")


async def unregister() -> Response:
    return Response()


for kind in ("systemsharedmemory", "cudasharedmemory"):
    for region in ("", "/region/{region}"):
        router.add_api_route(f"/{kind}{region}/status", status, methods=["GET"])
        router.add_api_route(f"/{kind}{region}/register", register, methods=["POST"])
        router.add_api_route(f"/{kind}{region}/unregister", unregister, methods=["POST"])


@router.get("/trace/setting")
async def trace_settings() -> dict[str, Any]:
    return NO_TRACE


@router.get("/models/{model}/trace/setting")
async def model_trace_settings(model: str, repository: ServedModels) -> dict[str, Any]:
    repository.model(model)
    return NO_TRACE


@router.post("/models/{model}/trace/setting")
async def change_model_trace_settings(model: str, request: Request, repository: ServedModels) -> dict[str, Any]:
    repository.model(model)
    return await change_trace_settings(request)


@router.post("/trace/setting")
async def change_trace_settings(request: Request) -> dict[str, Any]:
    changes = await read_body(request, TraceSettings)
    for name, value in (changes.model_extra or {}).items():
        if value is not None and (name == "trace_file" or value != NO_TRACE.get(name)):
            raise Unsupported("tracing is not supported; Server-Timing of every response has the times of its stages")
    return NO_TRACE
