"""The service on Ray Serve: each replica is the application of ``heed serve``, and the server around it is Ray's."""

import asyncio
from typing import Any

import ray
from ray import serve
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs, machine
from service.app import Application, create_app
from service.settings import Settings

SERVER_S = {  # settings of the server, which heed.yaml has other words for
    *("host", "port", "tls_certificate", "tls_key", "workers"),
    *("max_header_bytes", "receive_seconds", "drain_seconds", "shutdown_seconds"),
}


def application(settings: dict[str, Any]) -> serve.Application:
    """The application over ``settings``, as ``heed serve`` names them; what they leave out is the replicas' environment's.

    Raises:
        ValueError: one is unknown or wrong, or is not for a replica to decide.
    """
    if theirs := sorted(SERVER_S & settings.keys()):
        raise ValueError(f"{', '.join(theirs)}: the server is Ray's; see http_options and deployments")
    if Settings(**settings).model_control_mode == "explicit":
        raise ValueError("model_control_mode: explicit would reach one replica only; poll reaches all")
    return Heed.bind(settings)


@serve.deployment
@serve.ingress()
class Heed:
    """A replica; it is healthy once its models are loaded."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = _sized(Settings(**settings))
        self._service: Application | None = None

    def __serve_build_asgi_app__(self) -> ASGIApp:
        if not self._settings.model_repository.is_dir():
            raise FileNotFoundError(f"model_repository: there is no folder {self._settings.model_repository.absolute()}")
        machine.keep_heap()
        logs.configure(self._settings.log_level, self._settings.log_format)
        self._service = create_app(self._settings)
        return _Carried(self._service)

    async def check_health(self) -> None:
        """Returns when the service is ready. Ray waits for the first check, and takes later ones for failed in time."""
        assert self._service is not None
        while not self._service.readiness:
            await asyncio.sleep(0.05)


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
    """``settings`` for a replica that has ``num_cpus`` of this machine, and as large a share of its memory."""
    cpus = max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0)))
    own = {"threads": settings.threads or cpus, "concurrency": settings.concurrency or cpus}
    return settings.model_copy(update={**own, "workers": max(1, machine.cpus() // cpus)})
