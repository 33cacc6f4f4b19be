"""A real browser on a real server. Chromium is Debian's; HEED_TEST_BROWSER=1 makes its absence a failure."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, sync_playwright

from tests.support.server import serving

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SCREEN: ViewportSize = {"width": 1280, "height": 900}
BLOCKS = ("scaled_dot_product", "multi_head", "additive", "encoder")


@pytest.fixture(scope="session")
def viewer_repository(texts_repository, repository, tmp_path_factory) -> Path:
    """The small sentence model as ``bert``, and some of the built-in blocks."""
    folder = tmp_path_factory.mktemp("viewer")
    for name in BLOCKS:
        shutil.copytree(repository / name, folder / name)
    shutil.copytree(texts_repository / "bert", folder / "bert")
    return folder


@pytest.fixture(scope="session")
def viewer(viewer_repository) -> Iterator[httpx.Client]:
    with serving(viewer_repository) as client:
        yield client


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Ends with these tests: Playwright keeps an event loop running, and other tests start their own."""
    if CHROMIUM is None:
        if os.environ.get("HEED_TEST_BROWSER"):
            pytest.fail("no Chromium here: apt-get install chromium")
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="package")
def tab(browser) -> Iterator[Page]:
    """The tab that most tests load the page in: a browser keeps its modules, which a new context would fetch anew."""
    context = browser.new_context(viewport=SCREEN, accept_downloads=True)
    yield context.new_page()
    context.close()


def empty(tab: Page) -> None:
    """Leave the page, and take back what a test has changed of the tab."""
    tab.unroute_all(behavior="ignoreErrors")
    tab.evaluate("sessionStorage.clear()")
    tab.goto("about:blank")
    tab.mouse.move(0, 0)
    tab.emulate_media(media="null", color_scheme="light")
    tab.set_viewport_size(SCREEN)
    tab.context.clear_permissions()


@pytest.fixture
def open_page(browser, tab, viewer) -> Iterator[Callable[..., Page]]:
    """Opens the page with a fragment of settings. At the end no error may have been logged, no other host asked."""
    base = str(viewer.base_url).rstrip("/")
    wrong: list[str] = []
    contexts: list[BrowserContext] = []
    listeners: dict[str, Callable] = {}

    def check(url: str, host: str) -> None:
        if urlsplit(url).scheme in ("http", "https", "ws", "wss") and urlsplit(url).netloc != host:
            wrong.append(f"asked another host: {url}")

    def opened(
        fragment: str = "",
        *,
        url: str = base,
        width: int = SCREEN["width"],
        height: int = SCREEN["height"],
        expected: str = "",
        tensors: dict[str, Any] | None = None,
        own: bool = False,
        **options,
    ) -> Page:
        """``expected`` is a part of the messages that may be logged: a status that the test provokes. ``tensors`` come
        in place of those of the page's own sentence. A second page has a context of its own, and so has one with
        ``options`` or ``own``."""
        viewport: ViewportSize = {"width": width, "height": height}
        if listeners or options or own:
            context = browser.new_context(viewport=viewport, accept_downloads=True, **options)
            contexts.append(context)
            page = context.new_page()
        else:
            page = tab
            page.set_viewport_size(viewport)
        page.set_default_timeout(20_000)

        def logged(message) -> None:
            if message.type in ("error", "warning") and not (expected and expected in message.text):
                wrong.append(message.text)

        own = {
            "request": lambda request: check(request.url, urlsplit(url).netloc),
            "pageerror": lambda error: wrong.append(str(error)),
            "console": logged,
        }
        for event, listener in own.items():
            page.on(event, listener)
        if page is tab:
            listeners.update(own)
        if tensors is not None:
            page.route("**/example.json", lambda route: route.fulfill(json=tensors))
        page.goto(f"{url}/{f'#{fragment}' if fragment else ''}")
        return page

    yield opened
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    if listeners:
        empty(tab)
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture
def open_file(browser):
    """Opens a saved page in a browser without a network; it may log no error and ask for nothing."""
    context = browser.new_context(offline=True)
    wrong = []

    def opened(path):
        page = context.new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: re.match("https?:", request.url) and wrong.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    context.close()
    assert not wrong
