"""Liveness and readiness, as the Open Inference Protocol and its probes ask for them."""

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
    summary="Has every model been loaded and run once, and is the server not stopping?",
    responses={503: {"model": Ready}},
)
async def ready(request: Request, response: Response) -> Ready:
    state = request.app.state
    is_ready = state.repository.ready.is_set() and not state.is_stopping
    response.status_code = 200 if is_ready else 503
    return Ready(ready=is_ready)
