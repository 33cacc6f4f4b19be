"""Swagger UI at /docs, and at /docs/guide the site that ``make docs`` builds, or without it a list of error codes."""

import sys
from html import escape
from pathlib import Path

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from service.base.errors import meanings

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
    """The site's files below PATH, and a page that leads to the first of them.

    Without a site there is the page to which the ``type`` of a problem leads.
    """
    folder = next((folder for folder in FOLDERS if (folder / "index.html").exists()), None)
    if folder is None:
        return [Route(f"{PATH}/errors.html", _errors)]
    return [Route(PATH, _first), Mount(PATH, StaticFiles(directory=folder))]


async def _first(_: Request) -> Response:
    return HTMLResponse(FIRST)


async def _errors(_: Request) -> Response:
    lines = (f"<dt id={code}><code>{code}</code><dd>{escape(text)}" for code, text in sorted(meanings().items()))
    return HTMLResponse(
        f"<!doctype html><html lang=en><title>Errors of Heed</title><h1>Errors</h1><dl>{''.join(lines)}</dl>"
    )
