"""An answer on a slow network: heads are drawn as they come, a newer run ends it, and a lost connection is reported."""

import json

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from tests.viewer.pages import pixels

HEADS = 96
HERE = ".thumbnail[aria-busy=false]"
SOME = f"() => {{ const here = document.querySelectorAll('{HERE}').length; return 0 < here && here < {HEADS}; }}"
SLOW = 60_000  # bytes in a second; an answer has 4 kB and more for each head


def settings(tokens: int, seed: int = 1) -> str:
    sizes = {"batch": 1, "heads": HEADS, "kv_heads": HEADS, "m": tokens, "n": tokens}
    return f"model=scaled_dot_product&view=model&random={json.dumps({'seed': seed, 'sizes': sizes})}"


def limit(page: Page, bytes_per_second: int) -> None:
    """The rate at which answers come from now on; -1 = any."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    conditions = {"offline": False, "latency": 0, "uploadThroughput": -1, "downloadThroughput": bytes_per_second}
    session.send("Network.emulateNetworkConditions", conditions)


def change(page: Page, fragment: str) -> None:
    """Ask for other settings."""
    page.evaluate("(fragment) => { location.hash = fragment; }", fragment)


def picture(page: Page, head: int) -> np.ndarray:
    """The pixels of a thumbnail."""
    side = page.locator(".thumbnail canvas").nth(head).evaluate("(canvas) => canvas.width")
    return pixels(page, f".thumbnail:nth-child({head + 1}) canvas", 0, 0, side, side)


@pytest.fixture
def page(open_page) -> Page:
    page = open_page(settings(8), own=True)  # its network is made slow
    expect(page.locator(HERE)).to_have_count(HEADS, timeout=20_000)
    return page


@pytest.mark.parametrize("tokens", [40, 100])  # all weights, and small pictures of more
def test_heads_are_drawn_before_the_last_byte_has_come(page, tokens):
    runs = []
    page.on("request", lambda request: "/infer" in request.url and runs.append(request))
    limit(page, SLOW)
    change(page, settings(tokens))
    page.wait_for_function(SOME)
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "true")
    assert picture(page, 0).std() > 1
    assert not picture(page, HEADS - 1).any()
    limit(page, -1)
    expect(page.locator(HERE)).to_have_count(HEADS, timeout=30_000)
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false")
    assert picture(page, HEADS - 1).std() > 1
    assert len(runs) == 1 + (tokens > 64)  # the other one is of the selected head


def test_a_newer_run_ends_the_answer_that_is_coming(page):
    failed = []
    page.on("requestfailed", lambda request: failed.append((request.url.split("/")[-1], request.failure)))
    limit(page, SLOW)
    change(page, settings(100))
    page.wait_for_function(SOME)
    limit(page, -1)
    change(page, settings(9))
    page.wait_for_function("() => document.querySelector('.thumbnail canvas').width === 9")
    expect(page.locator(HERE)).to_have_count(HEADS)
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false")
    assert failed == [("infer", "net::ERR_ABORTED")]


def test_a_lost_connection_is_said_and_the_heads_that_came_stay(page):
    is_cutting = True

    def cut(route: Route) -> None:
        if not is_cutting:  # unroute would pass on a request that is answered below a moment later
            route.continue_()
            return
        answer = route.fetch()
        headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
        route.fulfill(status=200, headers=headers, body=answer.body()[: len(answer.body()) // 2])

    page.route("**/infer", cut)
    change(page, settings(100))
    expect(page.locator(".bad")).to_contain_text("Not all heads came: the connection was lost", timeout=20_000)
    page.wait_for_function(SOME)
    is_cutting = False
    page.get_by_role("button", name="try again").click()
    expect(page.locator(HERE)).to_have_count(HEADS)
    expect(page.locator(".bad")).to_have_count(0)


def test_the_pictures_are_those_of_an_answer_that_comes_at_once(page):
    looks = f"{settings(100)}&threshold=0.05&range=global"
    places = (0, 40, HEADS - 1)
    change(page, looks)
    page.wait_for_function("() => document.querySelector('.thumbnail canvas').width === 64")
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false")
    whole = [picture(page, head) for head in places]
    change(page, settings(8))
    page.wait_for_function("() => document.querySelector('.thumbnail canvas').width === 8")
    limit(page, SLOW)
    change(page, looks)
    page.wait_for_function(SOME)
    limit(page, -1)
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false", timeout=30_000)
    for head, expected in zip(places, whole, strict=True):
        np.testing.assert_array_equal(picture(page, head), expected, strict=True)
