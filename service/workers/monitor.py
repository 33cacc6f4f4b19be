"""A process of its own for metrics and health: it answers at any load, as it shares no event loop with requests."""

import asyncio
import multiprocessing
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from service.base.budget import MemoryBudget
from service.base.errors import Overloaded
from service.http.envelope import Envelope, RequestIds
from service.http.limits import LimitedProtocol
from service.http.response import error_response
from service.metrics import exposition
from service.settings import Settings
from service.telemetry.counters import RequestCounters
from service.telemetry.event_loop import EventLoopClock
from service.telemetry.shared_metrics import SharedMetrics
from service.v2.paths import StripTrailingSlash
from service.workers import last_resort
from service.workers.channel import ServiceState
from service.workers.server import close_overdue, configuration

END_S = 2.0  # for the process to end
MAX_HEADS_BYTES = 4 << 20  # of requests that have not come whole


@contextmanager
def monitor(
    listeners: Sequence[socket.socket],
    others: Sequence[socket.socket],
    state: ServiceState,
    shared_metrics: SharedMetrics,
    settings: Settings,
) -> Iterator[None]:
    """Answer on ``listeners`` from another process while the context is open; nothing without listeners.

    That process closes ``others``. It is forked, so no thread but that of the log may run yet.
    """
    if not listeners:
        yield
        return
    state.beat(False)
    parent = os.getpid()

    def serve() -> None:
        last_resort.send_when_parent_ends(signal.SIGKILL, parent)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal sends them to all processes
            signal.signal(number, signal.SIG_IGN)
        for other in others:
            other.close()
        _server(state, shared_metrics, settings).run([*listeners])

    process = multiprocessing.get_context("fork").Process(target=serve, daemon=True)
    process.start()
    for listener in listeners:
        listener.close()
    try:
        yield
    finally:
        process.kill()
        process.join(END_S)


def _server(state: ServiceState, shared_metrics: SharedMetrics, settings: Settings) -> uvicorn.Server:
    config = configuration(_application(state, shared_metrics), settings)
    config.load()
    counts = RequestCounters()
    budget = MemoryBudget(MAX_HEADS_BYTES, Overloaded, counts.refused)
    config.http_protocol_class = partial(  # type: ignore[assignment]  # uvicorn only calls it
        LimitedProtocol, settings=settings, counts=counts, budget=budget, clock=EventLoopClock()
    )
    return _Server(config)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second
            close_overdue(self.server_state.connections)
        return await super().on_tick(counter)


def _application(state: ServiceState, shared_metrics: SharedMetrics) -> Envelope:
    async def live(_: Request) -> Response:
        return JSONResponse({"live": state.is_live}, 200 if state.is_live else 503)

    async def ready(_: Request) -> Response:
        is_ready = state.is_ready and state.is_live
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def metrics(request: Request) -> Response:
        return await asyncio.to_thread(exposition, shared_metrics, request.headers.get("accept", ""))

    routes = [Route("/v2/health/live", live), Route("/v2/health/ready", ready), Route("/metrics", metrics)]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _answer})
    app.router.redirect_slashes = False
    return Envelope(StripTrailingSlash(app), RequestIds())


async def _answer(request: Request, error: Exception) -> Response:
    return error_response(request.url.path, error)
