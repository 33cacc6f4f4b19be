"""A real browser, Debian's Chromium, on a real server. All tests in it are extended, but those of test_smoke.py."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    ViewportSize,
    expect,
    sync_playwright,
)

from heed_client.client import Client

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SCREEN: ViewportSize = {"width": 1280, "height": 900}
CONTROLS_OPEN = """if (location.protocol !== "about:") try {
  for (const part of ["input", "display"]) sessionStorage[`heed-open-${part}`] ??= true;
} catch {}"""
BLOCKS = ("scaled_dot_product", "multi_head", "additive", "encoder")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            if item.path.name != "test_smoke.py":
                item.add_marker(pytest.mark.extended)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip("no Chromium here: apt-get install chromium"))


@pytest.fixture(scope="session")
def viewer_repository(texts_repository, repository, tmp_path_factory) -> Path:
    """The small sentence model as ``bert``, and some of the built-in blocks."""
    folder = tmp_path_factory.mktemp("viewer")
    for name in BLOCKS:
        shutil.copytree(repository / name, folder / name)
    shutil.copytree(texts_repository / "bert", folder / "bert")
    return folder


@pytest.fixture(scope="session")
def viewer(shared_server, viewer_repository) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared_server(viewer_repository).url, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def heed(viewer) -> Iterator[Client]:
    with Client(str(viewer.base_url)) as client:
        yield client


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ends with these tests: Playwright keeps an event loop running, and other tests start their own."""
    expect.set_options(timeout=20_000)  # of a machine under load
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="package")
def context(browser) -> BrowserContext:
    """Keeps the page's modules, which a new context would fetch anew."""
    context = browser.new_context(viewport=SCREEN)
    context.add_init_script(CONTROLS_OPEN)
    return context


@pytest.fixture
def open_page(browser, context, viewer) -> Iterator[Callable[..., Page]]:
    """Opens the page with a fragment of settings: it may log no error but with ``expected`` in it, nor ask other hosts.

    ``tensors`` come in place of those of the page's own sentence. With ``options``, of a context, it has its own.
    The controls of the input and the display are open, unless the page has its own context and they are ``closed``.
    """
    wrong: list[str] = []
    with ExitStack() as opened:

        def open_(
            fragment="", *, url=str(viewer.base_url), expected="no error", tensors=None, closed=False, **options
        ) -> Page:
            own = opened.enter_context(browser.new_context(**{"viewport": SCREEN, **options})) if options else context
            page = opened.enter_context(own.new_page())
            if options and not closed:
                page.add_init_script(CONTROLS_OPEN)
            page.set_default_timeout(20_000)

            def logged(message: ConsoleMessage) -> None:
                if message.type in ("error", "warning") and expected not in message.text:
                    wrong.append(message.text)

            def requested(request: Request) -> None:
                if re.match("(http|ws)s?:", request.url) and urlsplit(request.url).netloc != urlsplit(url).netloc:
                    wrong.append(f"asked another host: {request.url}")

            page.on("console", logged)
            page.on("request", requested)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            if tensors is not None:
                page.route("**/example.json", lambda route: route.fulfill(json=tensors))
            page.goto(f"{url}#{fragment}" if fragment else url)
            return page

        yield open_
    assert not wrong


@pytest.fixture
def open_file(open_page) -> Callable[..., Page]:
    """Opens a saved page in a browser without a network."""
    return lambda path, **options: open_page(url=path.as_uri(), offline=True, **options)
