"""The service on Ray Serve: each replica is the application of ``heed serve``, and the server around it is Ray's."""

import asyncio
from typing import Any

import ray
from ray import serve
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs, machine
from service.app import Application, create_app
from service.settings import Settings

SERVER_S = {  # settings of the server, for which the config file has words of Ray's
    *("host", "port", "tls_certificate", "tls_key", "workers"),
    *("max_header_bytes", "receive_seconds", "drain_seconds", "shutdown_seconds"),
}


class Heed:
    """A replica; it is healthy once its models are loaded."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = _sized(Settings(**settings))
        self._service: Application | None = None

    def __serve_build_asgi_app__(self) -> ASGIApp:
        folder = self._settings.model_repository
        if not folder.is_dir():
            raise FileNotFoundError(f"model_repository: there is no folder {folder.absolute()}")
        machine.keep_heap()
        logs.configure(self._settings.log_level, self._settings.log_format)
        self._service = create_app(self._settings)
        return _Carried(self._service)

    async def check_health(self) -> None:
        """Returns when the service is ready. Ray waits for the first check, and takes later ones for failed in time."""
        assert self._service is not None
        while not self._service.readiness:
            await asyncio.sleep(0.05)


def application(settings: dict[str, Any]) -> serve.Application:
    """The application over ``settings``, named as those of ``heed serve``; the others come from the environment.

    Raises:
        ValueError: one is unknown or wrong, or is not for a replica to settle.
    """
    read = Settings(**settings)
    if theirs := SERVER_S & settings.keys() | {"tls_certificate"} & read.model_fields_set:
        raise ValueError(f"{', '.join(sorted(theirs))}: the server is Ray's; see http_options and deployments")
    if read.model_control_mode == "explicit":
        raise ValueError("model_control_mode: explicit would reach one replica only; poll reaches all")
    return serve.deployment(serve.ingress()(Heed)).bind(settings)


class _Carried:
    """ASGI middleware: answers as Ray can pickle them, without the request's name, which Ray gives and says itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def carry(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [header for header in message["headers"] if header[0] != b"x-request-id"]
            elif isinstance(body := message.get("body"), memoryview):
                message["body"] = bytes(body)
            await send(message)

        await self._app(scope, receive, carry)


def _sized(settings: Settings) -> Settings:
    """``settings`` for a replica that has ``num_cpus`` of this machine, as large a share of its memory, and CUDA only
    if it has ``num_gpus``."""
    given = ray.get_runtime_context().get_assigned_resources()
    cpus = max(1, int(given.get("CPU", 0)))
    return settings.model_copy(
        update={
            "threads": settings.threads or cpus,
            "concurrency": settings.concurrency or (0 if given.get("GPU") else cpus),
            "workers": max(1, machine.cpus() // cpus),
            "provider": "cpu" if settings.provider == "auto" and not given.get("GPU") else settings.provider,
        }
    )
