"""The page and its files, with a Content-Security-Policy that allows scripts and requests of this server alone."""

import base64
import hashlib
import json
from importlib.util import find_spec
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from service.settings import Settings

PATH = "/viewer"
POLICY = (
    "default-src 'none'; script-src 'self' 'sha256-{imports}'; style-src 'self'; font-src 'self'; "
    "img-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors {ancestors}"
)


def routes(settings: Settings) -> list[BaseRoute]:
    """The page at / and its files below /viewer.

    Raises:
        FileNotFoundError: the package heed_client, which has the files, is not installed.
    """
    folder = files()
    modules = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.js"))}
    icon = (folder / "icon.svg").read_bytes()
    version = hashlib.sha256(b"".join([*modules.values(), icon])).hexdigest()[:16]
    # The version is in each URL, so that browsers need not ask again whether one of some 60 modules has changed.
    urls = {name if name.startswith("vendor/") else f"heed/{name}": f".{PATH}/{name}?v={version}" for name in modules}
    imports = json.dumps({"imports": urls})
    page = (folder / "index.html").read_text(encoding="utf-8").replace("$IMPORTS", imports).replace("$VERSION", version)
    digest = base64.b64encode(hashlib.sha256(imports.encode()).digest()).decode()
    headers = {
        "Content-Security-Policy": POLICY.format(imports=digest, ancestors=settings.viewer_frame_ancestors or "'none'"),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    async def get_page(_: Request) -> Response:
        return HTMLResponse(page, headers=headers)

    return [Route("/", get_page), Mount(PATH, ViewerFiles(folder, headers, version))]


def files() -> Path:
    """The folder of the viewer's files. The package is found, not imported: it needs httpx, which the service does not.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    spec = find_spec("heed_client")
    for location in (spec and spec.submodule_search_locations) or ():
        return Path(location) / "viewer"
    raise FileNotFoundError("the package heed_client, which has the files of the viewer, is not installed")


class ViewerFiles(StaticFiles):
    """The files, with the headers of the page; browsers keep a file whose URL has its version."""

    def __init__(self, folder: Path, headers: dict[str, str], version: str) -> None:
        super().__init__(directory=folder)
        self._headers = headers
        self._query = f"v={version}".encode()

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(self._headers)
        if scope["query_string"] == self._query:
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response
