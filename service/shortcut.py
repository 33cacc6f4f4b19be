"""The routes that carry tensors, without what FastAPI does around a route: there the route costs more than the work."""

from collections.abc import Sequence
from typing import Any, cast

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.endpoint import Endpoint


class Shortcut:
    """ASGI middleware: a POST to one of ``routes`` goes straight to its endpoint; all else goes on.

    The application has these routes too, and answers what is no POST.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes = [
            (route.path_regex.fullmatch, route.param_convertors, cast(Endpoint, route.app)) for route in routes
        ]

    def find(self, path: str) -> tuple[Endpoint, dict[str, Any]] | None:
        """The endpoint that a path leads to, and what the path says to it."""
        for match, convertors, endpoint in self._routes:
            if found := match(path):
                return endpoint, {name: convertors[name].convert(value) for name, value in found.groupdict().items()}
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.find(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
        else:
            endpoint, scope["path_params"] = found
            await endpoint(scope, receive, send)
