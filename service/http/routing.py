"""The inference routes, without what FastAPI does around a route: there the route costs more than the work."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import unquote

import httptools
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.cache import BoundedCache
from service.http.endpoint import InferenceEndpoint

MAX_URLS = 512  # cached
MAX_URL_BYTES = 1024  # of a cached one
SKIP_AFTER_MISS = 16  # requests of one route and order of length that get a task at once after one was not short


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """Where a path leads: the endpoint, and the parameters in the path."""

    endpoint: InferenceEndpoint[Any]
    path: str
    path_params: dict[str, Any]
    _skips: dict[int, int] = field(default_factory=dict)  # order of a body's length -> requests still to skip

    def skip(self, length: int) -> None:
        """A request with a body of ``length`` bytes was not short: do not try the next ones like it."""
        self._skips[length.bit_length()] = SKIP_AFTER_MISS

    def skips(self, length: int) -> bool:
        """Whether a request with a body of ``length`` bytes is not to be tried; each call counts one."""
        if not self._skips:
            return False
        order = length.bit_length()
        remaining = self._skips.get(order, 0)
        if remaining:
            self._skips[order] = remaining - 1
        return remaining > 0


class DirectRoutes:
    """ASGI middleware: a POST to one of ``routes`` goes straight to its endpoint; all else goes on.

    The application has these routes too, and answers what is no POST.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes = [
            (route.path_regex.fullmatch, route.param_convertors, cast(InferenceEndpoint[Any], route.app))
            for route in routes
        ]
        self._by_url: BoundedCache[DirectRoute | Literal[False]] = BoundedCache(MAX_URLS)  # False: no such route

    def find(self, path: str) -> DirectRoute | None:
        """The route of a path; None if it is none of these."""
        for fullmatch, convertors, endpoint in self._routes:
            if match := fullmatch(path):
                params = {name: convertors[name].convert(value) for name, value in match.groupdict().items()}
                return DirectRoute(endpoint, path, params)
        return None

    def find_url(self, url: bytes) -> DirectRoute | None:
        """The same for a URL as a request has it, if the route runs models."""
        cached = self._by_url.get(url)
        if cached is not None:
            return cached or None
        try:
            path = httptools.parse_url(url).path
            route = self.find(unquote(path.decode("ascii"))) if path else None
            route = route if route and isinstance(route.endpoint, InferenceEndpoint) else None
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):  # the request is refused later
            return None
        if len(url) <= MAX_URL_BYTES:
            self._by_url.put(url, route or False)
        return route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.find(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
        else:
            scope["path_params"] = route.path_params
            await route.endpoint(scope, receive, send)
