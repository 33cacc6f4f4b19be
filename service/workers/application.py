"""What a process serves: an ASGI application, and the parts of it that the process asks."""

from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from service.base.budget import MemoryBudget
from service.http.fast_path import FastPath
from service.repository.readiness import Readiness
from service.repository.repository import Repository
from service.telemetry.counters import RequestCounters
from service.telemetry.event_loop import EventLoopClock


@dataclass(frozen=True, eq=False)
class Application:
    """The service as ASGI, and what its process asks it for."""

    outermost: ASGIApp
    repository: Repository
    readiness: Readiness
    fast_path: FastPath
    counts: RequestCounters
    budget: MemoryBudget
    clock: EventLoopClock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.outermost(scope, receive, send)
