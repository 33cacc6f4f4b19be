"""Composition: builds the parts of the service from the settings and connects them. Nothing else does."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from service import docs_site, metrics
from service.background import background_tasks
from service.base.errors import HeedError
from service.base.timing import Timing
from service.engine.engine import RUNS_IN_FLIGHT_PER_GPU, Engine
from service.feature import Core, Feature, source_of
from service.generation.feature import GenerationFeature
from service.http.auth import ApiKeyAuth
from service.http.body import JSON_LENGTH
from service.http.control_guard import ControlGuard
from service.http.envelope import Envelope, RequestIds
from service.http.fast_path import FastPath
from service.http.response import error_response
from service.http.routing import DirectRoutes, Paths
from service.interventions.feature import InterventionsFeature
from service.media.feature import Pictures, Sounds
from service.memories.feature import MemoriesFeature
from service.memories.folder import Folder
from service.memories.source import Store
from service.memories.store import MemoryStore
from service.native import endpoint as native_endpoint
from service.native import routes as native_routes
from service.openapi import OPENAPI_PATH, OpenApi
from service.ort.provider import Provider
from service.repository.readiness import Readiness
from service.repository.repository import Repository
from service.settings import Settings
from service.telemetry import tracing
from service.telemetry.access_log import AccessLog, Observer
from service.telemetry.event_loop import EventLoopClock
from service.telemetry.shared_metrics import SharedMetrics, WorkerSlot
from service.text.feature import TextFeature
from service.v2 import health, log_settings, metadata, unsupported
from service.v2 import repository as v2_repository
from service.v2.infer import endpoint as v2_endpoint
from service.v2.paths import StripTrailingSlash
from service.viewer import routes as viewer_routes
from service.workers.application import Application

log = logging.getLogger("heed")

EXPOSED = (
    "X-Request-ID",
    "Server-Timing",
    "Retry-After",
    JSON_LENGTH,
)  # for scripts of other origins


def create_app(
    settings: Settings,
    shared_metrics: SharedMetrics | None = None,
    slot: WorkerSlot | None = None,
    store: Store | None = None,
    features: Sequence[Feature] | None = None,
) -> Application:
    """The application over ``settings.model_repository``. Models load after it started: it is live before it is ready.

    It publishes its metrics in ``slot`` of ``shared_metrics``, from which it answers ``/metrics`` for all workers. Its
    memories are in ``store``, which all workers share. Other ``features`` replace those of the service.

    Raises:
        OSError: a file of keys, or the folder of the memories, cannot be used.
        CannotTrace: the environment asks for traces that cannot be sent.
    """
    requested, settings = settings, settings.sized()
    shared_metrics = shared_metrics or SharedMetrics()
    traces = tracing.create_tracer() if tracing.is_wanted() else None
    if features is None:
        memories = MemoriesFeature(store or open_memories(settings), lambda: auth)
        media = Pictures(), Sounds()
        interventions = InterventionsFeature(settings, source_of(media))
        generation = GenerationFeature(settings.intra_op_threads, interventions.source)
        features = [memories, TextFeature(), *media, interventions, generation]
    repository, engine = Repository(settings, [feature.load for feature in features]), Engine(settings)
    core = Core(repository, settings, engine, source_of(features))
    clock = EventLoopClock()
    counted = metrics.Metrics(repository, engine, features, clock, shared_metrics, slot or shared_metrics.slots[0])

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        _set_run_limits(engine, repository.open(), requested)
        await engine.open()
        sweeps = [feature.sweep for feature in features]
        async with background_tasks(repository, engine, auth, counted, sweeps, clock, settings):
            yield
        engine.close()
        counted.publish()
        if store is None:
            for feature in features:
                feature.close()
        if traces:
            await asyncio.to_thread(tracing.close, traces)

    app = FastAPIOffline(
        title="Heed",
        version=version("heed-attention"),
        description="Attention over HTTP: the output, and the weights.",
        docs_url=None,  # service/docs_site.py has the page
        redoc_url=None,
        openapi_url=OPENAPI_PATH,
        redirect_slashes=False,  # Starlette's redirects would contain the Host header of the request unchecked
        generate_unique_id_function=lambda route: route.name,  # clients are generated with these names
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        lifespan=lifespan,
    )
    app.state.settings = settings
    app.state.repository = repository
    app.state.budget = engine.budget
    app.state.offload = engine.offload
    app.state.readiness = readiness = Readiness(repository)
    app.state.metrics = counted
    apis = v2_endpoint, native_endpoint
    routes = [route for api in apis for route in api.routes(repository, settings, engine, core.source)]
    routes += [route for feature in features for route in feature.routes(core)]
    app.router.routes.extend(routes)
    if not settings.monitoring_port:
        app.router.routes.append(Route("/metrics", counted.scrape))
    if settings.pages in ("all", "viewer"):
        app.router.routes.extend(viewer_routes.routes(settings))
    if settings.pages in ("all", "docs"):
        has_keys = bool(settings.api_keys_file or settings.admin_keys_file)
        app.router.routes.append(docs_site.swagger_ui(OPENAPI_PATH, "/static-offline-docs", asks_for_key=has_keys))
        app.router.routes.extend(docs_site.routes())
    modules = (native_routes, health, metadata, v2_repository, log_settings, unsupported)
    for module in modules:
        app.include_router(module.router)
    own = [*app.routes, *(route for module in modules for route in module.router.routes)]
    templates = {route.path for route in own if isinstance(route, Route)}
    app.state.paths = Paths(app.routes, templates, lambda: repository.blocks)
    for kind in (HeedError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)
    others = StripTrailingSlash(app)
    guarded = others if settings.admin_keys_file else ControlGuard(others, settings)
    direct = [route for route in routes if route.app is route.endpoint]  # ASGI applications
    direct_routes = DirectRoutes(guarded, direct, takes_query=viewer_routes.PATH)
    ids = RequestIds()
    auth = ApiKeyAuth(direct_routes, settings) if settings.api_keys_file or settings.admin_keys_file else None
    timing = tracing.TracedTiming if traces else Timing
    app.state.auth = auth
    app.router.routes.insert(
        0, Route(OPENAPI_PATH, OpenApi(app, auth, core, features), methods=["GET"], include_in_schema=False)
    )
    observers: list[Observer] = [traces.record] if traces else []
    if settings.access_log != "off":  # after the traces, as it names them
        observers.append(AccessLog(settings.access_log == "all", settings.slow_milliseconds))
    outermost: ASGIApp = Envelope(auth or direct_routes, ids, timing, observers)
    fast_path = FastPath(direct_routes, auth, ids, timing, observers=observers)
    if settings.cors_origins:
        origins = [origin.strip() for origin in settings.cors_origins.split(",")]
        outermost = CORSMiddleware(
            outermost, origins, ("GET", "POST", "DELETE"), allow_headers=["*"], expose_headers=EXPOSED, max_age=3600
        )
        task_headers = fast_path.task_headers | {b"origin"}
        fast_path = replace(fast_path, task_headers=task_headers, response_fields=[(b"vary", b"Origin")])
    return Application(outermost, repository, readiness, fast_path, engine.counts, engine.budget, clock)


def open_memories(settings: Settings) -> MemoryStore:
    """The store of the memories of this machine, which all workers share.

    Raises:
        OSError: its folder cannot be used.
    """
    return MemoryStore(Folder(settings.memories), settings.sized().memories_bytes)


def _set_run_limits(engine: Engine, provider: Provider, requested: Settings) -> None:
    """Limit the engine's concurrent runs as requested, or as suits the device. Workers share a GPU's free memory."""
    if provider.name == "cuda":
        room = provider.memory or provider.available_bytes // requested.workers
        engine.configure_device(requested.max_concurrent_runs or RUNS_IN_FLIGHT_PER_GPU, on_gpu=True, room=room)
    else:
        engine.configure_device(requested.sized().max_concurrent_runs)


async def _answer(request: Request, error: Any) -> Response:
    if isinstance(error, HTTPException):
        error = request.app.state.paths.explained(error, request.scope)
    return error_response(request.url.path, error)
