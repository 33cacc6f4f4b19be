"""A real browser on a real server. Chromium is Debian's; HEED_TEST_BROWSER=1 makes its absence a failure."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.server import serving

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
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


@pytest.fixture
def open_page(browser, viewer) -> Iterator[Callable[..., Page]]:
    """Opens the page with a fragment of settings. At the end no error may have been logged, no other host asked."""
    base = str(viewer.base_url).rstrip("/")
    wrong: list[str] = []
    contexts = []

    def check(url: str, host: str) -> None:
        if urlsplit(url).scheme in ("http", "https", "ws", "wss") and urlsplit(url).netloc != host:
            wrong.append(f"asked another host: {url}")

    def opened(
        fragment: str = "", *, url: str = base, width: int = 1280, height: int = 900, expected: str = "", **options
    ) -> Page:
        """``expected`` is a part of the messages that may be logged: a status that the test provokes."""
        context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("request", lambda request: check(request.url, urlsplit(url).netloc))
        page.on("pageerror", lambda error: wrong.append(str(error)))

        def logged(message) -> None:
            if message.type in ("error", "warning") and not (expected and expected in message.text):
                wrong.append(message.text)

        page.on("console", logged)
        page.goto(f"{url}/{f'#{fragment}' if fragment else ''}")
        return page

    yield opened
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
