"""Liveness and readiness for the Open Inference Protocol and for probes."""

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

router = APIRouter(prefix="/v2/health", tags=["health"])


class Live(BaseModel):
    live: bool


class Ready(BaseModel):
    ready: bool


@router.get("/live", summary="Is the process up?")
async def live() -> Live:
    return Live(live=True)


@router.get(
    "/ready",
    summary="Are the models loaded in all processes, and is the server not shutting down?",
    responses={503: {"model": Ready}},
)
async def ready(request: Request, response: Response) -> Ready:
    is_ready = bool(request.app.state.readiness)
    response.status_code = 200 if is_ready else 503
    return Ready(ready=is_ready)
