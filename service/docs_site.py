"""The documentation as a site, at /docs/guide where it is installed: ``make docs`` builds it, and the image has it."""

import sys
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

PATH = "/docs/guide"
FOLDERS = (Path(sys.prefix, "share", "heed", "guide"), Path(__file__).parents[1] / "build" / "guide")
# No answer of this service is a redirect, and the links of the site are relative to its folder.
FIRST = (
    '<!doctype html><title>Heed</title><link rel="icon" href="data:,">'
    f'<meta http-equiv="refresh" content="0; url={PATH}/index.html">'
    f'<a href="{PATH}/index.html">The documentation of Heed</a>'
)


def routes() -> list[BaseRoute]:
    """The site's files below PATH, and a page that leads to the first of them; nothing where there is no site."""
    folder = next((folder for folder in FOLDERS if (folder / "index.html").exists()), None)
    if folder is None:
        return []
    return [Route(PATH, _first), Mount(PATH, StaticFiles(directory=folder))]


async def _first(_: Request) -> Response:
    return HTMLResponse(FIRST)
