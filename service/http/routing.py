"""The inference routes, without what FastAPI does around a route: there the route costs more than the work."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import unquote

import httptools
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.base.cache import BoundedCache
from service.base.errors import Malformed
from service.base.messages import closest, shortened
from service.http.direct import DirectEndpoint

METHODS = {"GET": "GET", "HEAD": "GET"} | {name: name for name in ("POST", "PUT", "PATCH", "DELETE")}  # -> as routed
NATIVE = "/v1/"
OPENAI = ("/chat/completions", "/completions", "/responses", "/embeddings")  # paths of other servers
MAX_QUOTED_PATH_BYTES = 120  # of one that an error repeats
MAX_URLS = 512  # cached
MAX_URL_BYTES = 1024  # of a cached one
SKIP_AFTER_MISS = 16  # requests of one route and order of length that get a task at once after one was not short


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """Where a path leads: the endpoint, and the parameters in the path."""

    endpoint: DirectEndpoint
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

    The application has these routes too, and answers what is no POST. It gets a query string only below the path
    ``takes_query``: FastAPI would parse it for each route, and no other route takes one.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[Route], takes_query: str) -> None:
        self._app = app
        self._takes_query = f"{takes_query}/"
        self._routes = [
            (route.path_regex.fullmatch, route.param_convertors, cast(DirectEndpoint, route.app)) for route in routes
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
            parsed = httptools.parse_url(url)
            path = unquote(parsed.path.decode("ascii")) if parsed.path else ""
            route = self.find(path) if path and not (parsed.query and refuses_query(path)) else None
            route = route if route and isinstance(route.endpoint, DirectEndpoint) else None
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):  # the request is refused later
            return None
        if len(url) <= MAX_URL_BYTES:
            self._by_url.put(url, route or False)
        return route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["query_string"]:
            if refuses_query(scope["path"]):
                query = scope["query_string"].decode("latin-1")
                raise Malformed(f"expected no query string, got '?{query}'; send fields in the JSON body")
            if not scope["path"].startswith(self._takes_query):
                scope["query_string"] = b""
        route = self.find(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
        else:
            scope["path_params"] = route.path_params
            await route.endpoint(scope, receive, send)


def refuses_query(path: str) -> bool:
    """Whether a query string is an error: in the native API. Clients of the Open Inference Protocol may append any."""
    return path.startswith(NATIVE)


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths of an application, for errors: its ``routes``, and their ``templates``, such as /v1/text/{block}."""

    routes: Sequence[BaseRoute]
    templates: Collection[str]
    blocks: Callable[[], Collection[str]]

    def explained(self, error: HTTPException, scope: Scope) -> HTTPException:
        """A router's 404 or 405, with the path that may be meant, or with the methods that the path takes."""
        path, method = scope["path"], scope["method"]
        short = shortened(path, MAX_QUOTED_PATH_BYTES)
        if error.status_code == 405:
            allowed = self._methods(path, scope)
            words = f"{', '.join(allowed[:-1])} and {allowed[-1]}" if len(allowed) > 1 else "".join(allowed)
            detail = f"Method Not Allowed: {short} takes {words}, not {method}"
            return HTTPException(405, detail, {**(error.headers or {}), "Allow": ", ".join(allowed)})
        if error.status_code != 404 or error.detail != "Not Found":
            return error
        meant = self._meant(path, scope)
        hint = f"did you mean {meant}?" if meant else "GET /openapi.json lists all paths"
        if path.rstrip("/").endswith(OPENAI):
            hint = f"the OpenAI API is not supported; {hint}"
        return HTTPException(404, f"Not Found: there is no {short}; {hint}", error.headers)

    def _methods(self, path: str, scope: Scope) -> list[str]:
        """All methods that some route takes for ``path``; HEAD is answered wherever GET is."""
        whole = {**scope, "path": path, "root_path": scope.get("app_root_path", "")}  # a mount has changed its root
        return [method for method, asked in METHODS.items() if self._takes(whole | {"method": asked})]

    def _takes(self, scope: Scope) -> bool:
        return any(
            route.matches(dict(scope))[0] is Match.FULL
            for route in self.routes
            if scope["method"] == "GET" or not isinstance(route, Mount)
        )

    def _meant(self, path: str, scope: Scope) -> str | None:
        """The path that may be meant by an unknown one; None if none is like it."""
        segments = path.strip("/").split("/")
        plain = "/" + "/".join(filter(None, segments))
        for candidate in (plain, plain.removeprefix("/v1"), plain.removeprefix("/v2"), f"/v1{plain}", f"/v2{plain}"):
            if candidate != path and len(candidate) <= MAX_QUOTED_PATH_BYTES and self._methods(candidate, scope):
                return candidate
        names = [template.strip("/").split("/") for template in self.templates]
        filled = {
            "/" + "/".join(given if name.startswith("{") else name for name, given in zip(named, segments, strict=True))
            for named in names
            if len(named) == len(segments) and all(map(_is_like, segments, named))
        }
        likely = closest(path, sorted(filled - {path}))
        if likely and self._methods(likely, scope):
            return likely
        return f"{NATIVE}attention/{segments[-1]}" if segments[-1] in self.blocks() else None


def _is_like(given: str, name: str) -> bool:
    """Whether a segment may be meant as the one called ``name`` in a template."""
    return name.startswith("{") or closest(given, [name]) is not None
