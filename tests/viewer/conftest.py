"""A real browser, Debian's Chromium, on a real server. All tests in it are extended, but those of test_smoke.py."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, ViewportSize, sync_playwright

from heed_client.client import Client

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SCREEN: ViewportSize = {"width": 1280, "height": 900}
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
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="package")
def kept_tab(browser) -> Iterator[Page]:
    """A browser keeps the page's modules, which a new context would fetch anew."""
    context = browser.new_context(viewport=SCREEN, accept_downloads=True)
    yield context.new_page()
    context.close()


@pytest.fixture
def tab(kept_tab) -> Iterator[Page]:
    """The tab that most tests load the page in; then it is left, and what a test has changed of it is taken back."""
    yield kept_tab
    kept_tab.unroute_all(behavior="ignoreErrors")
    if kept_tab.url != "about:blank":
        kept_tab.evaluate("sessionStorage.clear()")
    kept_tab.goto("about:blank")
    kept_tab.mouse.move(0, 0)
    kept_tab.emulate_media(media="null", color_scheme="light")
    kept_tab.set_viewport_size(SCREEN)
    kept_tab.context.clear_permissions()


@pytest.fixture
def new_page(browser) -> Iterator[Callable[..., Page]]:
    """Opens a tab in a context of its own."""
    with ExitStack() as contexts:

        def opened(**options) -> Page:
            context = browser.new_context(**{"viewport": SCREEN, "accept_downloads": True, **options})
            contexts.callback(context.close)
            return context.new_page()

        yield opened


@pytest.fixture
def watch(tab, new_page) -> Iterator[Callable[..., None]]:
    """``watch(page, host, expected)``: no error may be logged but with ``expected`` in it, no other host be asked."""
    wrong: list[str] = []
    with ExitStack() as listeners:

        def watched(page: Page, host: str = "", expected: str = "no error") -> None:
            def logged(message: ConsoleMessage) -> None:
                if message.type in ("error", "warning") and expected not in message.text:
                    wrong.append(message.text)

            def requested(request: Request) -> None:
                if re.match("(http|ws)s?:", request.url) and urlsplit(request.url).netloc != host:
                    wrong.append(f"asked another host: {request.url}")

            handlers = {"console": logged, "request": requested, "pageerror": lambda error: wrong.append(str(error))}
            for event, listener in handlers.items():
                page.on(event, listener)
                listeners.callback(page.remove_listener, event, listener)

        yield watched
    assert not wrong


@pytest.fixture
def open_page(tab, new_page, watch, viewer) -> Callable[..., Page]:
    """Opens the page with a fragment of settings, under ``watch``.

    ``tensors`` come in place of those of the page's own sentence. A second page has a context of its own, and so has
    one with ``options`` or ``own``.
    """
    pages: list[Page] = []

    def opened(fragment="", *, url=str(viewer.base_url), expected="no error", tensors=None, own=False, **options):
        page = new_page(**options) if pages or options or own else tab
        pages.append(page)
        page.set_default_timeout(20_000)
        watch(page, urlsplit(url).netloc, expected)
        if tensors is not None:
            page.route("**/example.json", lambda route: route.fulfill(json=tensors))
        page.goto(f"{url.rstrip('/')}/{f'#{fragment}' if fragment else ''}")
        return page

    return opened


@pytest.fixture
def open_file(new_page, watch) -> Callable[[Path], Page]:
    """Opens a saved page in a browser without a network, under ``watch``."""

    def opened(path: Path, **options) -> Page:
        page = new_page(offline=True, **options)
        watch(page)
        page.goto(path.as_uri())
        return page

    return opened
