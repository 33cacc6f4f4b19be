"""The service on Ray Serve: each replica is the application of ``heed serve``, in Ray's server."""

import asyncio
from typing import Any

import ray
from ray import serve
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.ray.memories.cluster import MemorySettings
from deploy.ray.memories.store import ClusterStore
from service.app import create_app
from service.base import machine
from service.settings import Settings
from service.telemetry import logs
from service.workers.application import Application

SERVER_SETTINGS = {  # of heed serve's server; Ray's is configured in heed.yaml
    *("host", "port", "tls_certificate", "tls_key", "workers"),
    *("transfer_timeout_seconds", "keep_alive_seconds", "monitoring_port", "drain_seconds", "shutdown_seconds"),
}
SPLITTING = {"copies": 2, "part_bytes": 64 << 20}  # of memories, by default


class Heed:
    """A replica. It is healthy once its models are loaded."""

    def __init__(self, settings: dict[str, Any], splitting: dict[str, int]) -> None:
        self._settings = _sized(Settings(**settings))
        self._splitting = splitting
        self._service: Application | None = None

    def __serve_build_asgi_app__(self) -> ASGIApp:
        folder = self._settings.model_repository
        if not folder.is_dir():
            raise FileNotFoundError(f"model_repository: there is no folder {folder.absolute()}")
        machine.keep_heap()
        logs.configure(self._settings.log_level, self._settings.log_format)
        self._service = create_app(self._settings, store=ClusterStore(self._memory_settings()))
        return _RayResponses(self._service)

    async def check_health(self) -> None:
        """Return when the service is ready. Ray waits for the first check; later ones fail by a timeout."""
        assert self._service is not None
        while not self._service.readiness:
            await asyncio.sleep(0.05)

    def _memory_settings(self) -> MemorySettings:
        sized = self._settings.model_copy(update={"workers": 1}).sized()
        return MemorySettings(self._settings.memories, sized.memories_bytes, **self._splitting)


def application(settings: dict[str, Any]) -> serve.Application:
    """The Ray application with ``settings``, named as for ``heed serve``; others come from the environment.

    Further settings are ``memory_copies``, the number of nodes that have each part of a memory, and
    ``memory_part_bytes``, the size of a part.

    Raises:
        ValueError: a setting is unknown or wrong, or belongs to Ray's server.
    """
    settings = dict(settings)
    splitting = {name: settings.pop(f"memory_{name}", default) for name, default in SPLITTING.items()}
    for name, number in splitting.items():
        if type(number) is not int or number < 1:
            raise ValueError(f"memory_{name}: expected a whole number of at least 1, got {number!r}")
    read = Settings(**settings)
    if reserved := SERVER_SETTINGS & settings.keys() | {"tls_certificate"} & read.model_fields_set:
        raise ValueError(f"{', '.join(sorted(reserved))}: the server is Ray's; see http_options and deployments")
    if read.model_control_mode == "explicit":
        raise ValueError("model_control_mode: explicit would reach only one replica; poll reaches all")
    return serve.deployment(serve.ingress()(Heed)).bind(settings, splitting)


class _RayResponses:
    """ASGI middleware: responses that Ray can pickle, without X-Request-ID, which Ray sets itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_plain(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [header for header in message["headers"] if header[0] != b"x-request-id"]
            elif isinstance(body := message.get("body"), memoryview):
                message["body"] = bytes(body)
            await send(message)

        await self._app(scope, receive, send_plain)


def _sized(settings: Settings) -> Settings:
    """The settings of a replica: ``num_cpus``, an equal share of the machine's memory, CUDA with ``num_gpus``."""
    given = ray.get_runtime_context().get_assigned_resources()
    cpus = max(1, int(given.get("CPU", 0)))
    return settings.model_copy(
        update={
            "intra_op_threads": settings.intra_op_threads or cpus,
            "max_concurrent_runs": settings.max_concurrent_runs or (0 if given.get("GPU") else cpus),
            "workers": max(1, machine.cpus() // cpus),
            "provider": "cpu" if settings.provider == "auto" and not given.get("GPU") else settings.provider,
        }
    )
