"""Trailing slashes: the protocol's documents write some paths with, some without; under /v2 both are the same path."""

from starlette.types import ASGIApp, Receive, Scope, Send


class Slash:
    """ASGI middleware: ``/v2/health/live/`` is answered as ``/v2/health/live``, without a redirect."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/") and scope["path"].startswith("/v2/"):
            scope = {**scope, "path": scope["path"][:-1]}
        await self._app(scope, receive, send)
