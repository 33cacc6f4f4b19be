"""The routes that carry tensors, without what FastAPI does around a route: there the route costs more than the work."""

from collections.abc import Sequence

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send


class Shortcut:
    """ASGI middleware: a POST to one of ``routes`` goes straight to its endpoint; all else goes on.

    The application has these routes too, and answers what is no POST.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes = [(route.path_regex.fullmatch, route.param_convertors, route.app) for route in routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            for match, convertors, endpoint in self._routes:
                if found := match(scope["path"]):
                    scope["path_params"] = {
                        name: convertors[name].convert(value) for name, value in found.groupdict().items()
                    }
                    await endpoint(scope, receive, send)
                    return
        await self._app(scope, receive, send)
