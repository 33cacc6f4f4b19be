"""The application: the faces over one repository, wired from the settings."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service import docs, errors, health, metrics, native, tracing
from service.access import Access
from service.access_log import AccessLog
from service.board import Board, Slot
from service.body import JSON_LENGTH
from service.counts import Counts
from service.engine import IN_FLIGHT, Engine
from service.envelope import Envelope
from service.errors import HeedError
from service.provider import Provider
from service.readiness import Readiness
from service.repository import Repository
from service.request_id import RequestIds
from service.settings import Settings
from service.shortcut import Shortcut
from service.timing import Timing
from service.v2 import control, describe, infer, log_settings, shared_memory
from service.v2.paths import Slash

if TYPE_CHECKING:
    from service.protocol import Head

log = logging.getLogger("heed")

IDLE = 10.0  # seconds without a large run
LOOK = 1.0  # seconds between looks at the files of keys, and at the device
EXPOSED = ("X-Request-ID", "Server-Timing", "Retry-After", JSON_LENGTH)  # what a page of another origin may read


class Application:
    """The service as ASGI, and what its process asks it for.

    ``watches`` says that each request is logged, traced, or held to an origin, so that none may be answered without it.
    ``access`` holds requests to a key; ``heads`` are of requests that it lets through, forgotten when keys change.
    """

    def __init__(
        self,
        outermost: ASGIApp,
        repository: Repository,
        readiness: Readiness,
        shortcut: Shortcut,
        request_ids: RequestIds,
        counts: Counts,
        access: Access | None,
        watches: bool,
    ) -> None:
        self._outermost = outermost
        self.repository = repository
        self.readiness = readiness
        self.shortcut = shortcut
        self.request_ids = request_ids
        self.counts = counts
        self.access = access
        self.heads: dict[bytes, Head] = {}
        self.watches = watches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._outermost(scope, receive, send)


def create_app(settings: Settings, board: Board | None = None, slot: Slot | None = None) -> Application:
    """The service over ``settings.model_repository``; models are loaded while it already answers liveness.

    It puts up what it counts in ``slot`` of the workers' ``board``.
    """
    asked, settings = settings, settings.sized()
    repository, engine = Repository(settings), Engine(settings)
    board = board or Board()
    traces = tracing.provider(settings.server_name) if tracing.is_wanted() else None
    counted = metrics.Metrics(repository, engine, board, slot or board.slots[0])

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        _fit(engine, repository.open(), asked)
        await engine.open()
        loading = asyncio.create_task(asyncio.to_thread(repository.load))
        polling = asyncio.create_task(_poll(loading, repository, settings))
        publishing = asyncio.create_task(counted.keep_publishing())
        giving_back = asyncio.create_task(_give_back(repository, engine))
        looking = asyncio.create_task(_look(application))
        mending = asyncio.create_task(_mend(repository, engine, asked))
        yield
        polling.cancel()
        publishing.cancel()
        giving_back.cancel()
        looking.cancel()
        mending.cancel()
        await loading
        engine.close()
        counted.publish()
        if traces:
            await asyncio.to_thread(tracing.close, traces)

    app = FastAPIOffline(
        title="Heed",
        version=version("heed-attention"),
        description="Attention over HTTP: the output, and the weights.",
        docs_url="/docs" if settings.docs else None,
        redoc_url=None,
        openapi_url="/openapi.json",
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        lifespan=lifespan,
    )
    app.state.settings = settings
    app.state.repository = repository
    app.state.readiness = readiness = Readiness(repository)
    app.state.metrics = counted
    tensors = [route for face in (infer, native) for route in face.routes(repository, settings, engine)]
    app.router.routes.extend(tensors)
    if settings.metrics:
        app.include_router(metrics.router)
    for face in (native, health, describe, control, log_settings, shared_memory):
        app.include_router(face.router)
    for kind in (HeedError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)
    app.openapi = lambda: docs.openapi(app)  # type: ignore[method-assign]  # as FastAPI's documentation extends it
    shortcut, ids = Shortcut(Slash(app), tensors), RequestIds()
    access = Access(shortcut, settings) if settings.api_keys_file or settings.admin_keys_file else None
    outermost: ASGIApp = Envelope(access or shortcut, ids, tracing.Laps if traces else Timing)
    if settings.access_log != "off":
        outermost = AccessLog(outermost, settings.access_log, settings.slow_milliseconds)
    if traces:
        outermost = tracing.Tracing(outermost, traces)
    if settings.cors_origins:
        origins = [origin.strip() for origin in settings.cors_origins.split(",")]
        outermost = CORSMiddleware(
            outermost, origins, ("GET", "POST"), allow_headers=["*"], expose_headers=EXPOSED, max_age=3600
        )
    watches = not isinstance(outermost, Envelope)
    application = Application(outermost, repository, readiness, shortcut, ids, engine.counts, access, watches)
    return application


async def _poll(loading: asyncio.Task[None], repository: Repository, settings: Settings) -> None:
    await asyncio.wait([loading])
    while settings.model_control_mode == "poll":
        await asyncio.sleep(settings.model_poll_seconds)
        try:
            await asyncio.to_thread(repository.poll)
        except OSError as error:  # a folder that goes away while it is looked at; the next look finds what is there
            log.warning("the model repository could not be looked at: %s", error)


async def _give_back(repository: Repository, engine: Engine) -> None:
    """Large runs keep their memory for the next, as asking for it anew takes longer than they do; idleness frees it."""
    while True:
        await asyncio.sleep(IDLE)
        if engine.large is not None and time.monotonic() - engine.large > IDLE:
            engine.large = None
            await asyncio.to_thread(repository.give_back)


def _fit(engine: Engine, provider: Provider, asked: Settings) -> None:
    """Let the engine run as much as is asked for, or as suits the device; what is free of a GPU is for all workers."""
    if provider.name == "cuda":
        room = provider.memory or provider.room // asked.workers
        engine.fit(asked.concurrency or IN_FLIGHT, on_gpu=True, room=room)
    else:
        engine.fit(asked.sized().concurrency)


async def _mend(repository: Repository, engine: Engine, settings: Settings) -> None:
    """Open the models anew when their device is lost, where the process is to live on."""
    while True:
        await asyncio.sleep(LOOK)
        if repository.provider and repository.provider.lost and not repository.is_beyond_help:
            try:
                _fit(engine, await asyncio.to_thread(repository.reopen), settings)
            except OSError as error:
                log.warning("the model repository could not be read: %s", error)


async def _look(application: Application) -> None:
    """Follow the files of keys; what was known to be allowed is asked again after a change."""
    while application.access:
        await asyncio.sleep(LOOK)
        if application.access.look():
            application.heads.clear()


async def _answer(request: Request, error: Any) -> Response:
    return errors.answer(request.url.path, error)
