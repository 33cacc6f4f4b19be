"""Swagger UI at /docs, and at /docs/guide the site that ``make docs`` builds, where it is installed."""

import sys
from pathlib import Path

from fastapi.openapi.docs import get_swagger_ui_html
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
# A browser sends no key by itself: the page asks for one where an answer is 401, and keeps it until it is closed.
ASKING = """<script>
const send = window.fetch;
let key = null;
window.fetch = async (url, options = {}) => {
  for (;;) {
    const headers = key ? { Authorization: `Bearer ${key}`, ...options.headers } : options.headers;
    const answer = await send(url, { ...options, headers });
    if (answer.status !== 401) return answer;
    key = prompt("This server needs an API key" + (key ? ", and does not know this one" : ""));
    if (!key) return answer;
  }
};
</script>"""


def swagger_ui(openapi_path: str, static_path: str, asks_for_key: bool) -> BaseRoute:
    """The page /docs, whose files are below ``static_path``."""
    page = get_swagger_ui_html(
        openapi_url=openapi_path,
        title="Heed",
        swagger_js_url=f"{static_path}/swagger-ui-bundle.js",
        swagger_css_url=f"{static_path}/swagger-ui.css",
        swagger_favicon_url=f"{static_path}/favicon.png",
    ).body
    html = bytes(page).decode().replace("<body>", f"<body>{ASKING}" if asks_for_key else "<body>", 1)

    async def get_page(_: Request) -> Response:
        return HTMLResponse(html)

    return Route("/docs", get_page)


def routes() -> list[BaseRoute]:
    """The site's files below PATH, and a page that leads to the first of them; nothing where there is no site."""
    folder = next((folder for folder in FOLDERS if (folder / "index.html").exists()), None)
    if folder is None:
        return []
    return [Route(PATH, _first), Mount(PATH, StaticFiles(directory=folder))]


async def _first(_: Request) -> Response:
    return HTMLResponse(FIRST)
