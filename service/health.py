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
    summary="Has every model been loaded and run once, in all processes, and is it not about to end?",
    responses={503: {"model": Ready}},
)
async def ready(request: Request, response: Response) -> Ready:
    is_ready = bool(request.app.state.readiness)
    response.status_code = 200 if is_ready else 503
    return Ready(ready=is_ready)
