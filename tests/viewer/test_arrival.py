"""An answer on a slow network: heads are drawn as they come, a newer run ends it, and a lost connection is said."""

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from tests.viewer.pages import pixels

HEADS = 4
HERE = ".thumbnail[aria-busy=false]"
SOME = f"() => {{ const here = document.querySelectorAll('{HERE}').length; return 0 < here && here < {HEADS}; }}"


def words(count: int) -> str:
    return " ".join(["the", "cat", "sat", "on", "mat"][i % 5] for i in range(count))


def limit(page: Page, bytes_per_second: int) -> None:
    """The rate at which answers come from now on; -1 = any."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    conditions = {"offline": False, "latency": 0, "uploadThroughput": -1, "downloadThroughput": bytes_per_second}
    session.send("Network.emulateNetworkConditions", conditions)


def ink(page: Page, thumbnail: int) -> float:
    """How much the pixels of a thumbnail differ."""
    size = page.eval_on_selector_all(".thumbnail canvas", f"(all) => all[{thumbnail}].width")
    return float(pixels(page, f".thumbnail:nth-child({thumbnail + 1}) canvas", 0, 0, size, size).std())


@pytest.mark.parametrize("count", [50, 100])  # all weights, and small pictures of more
def test_heads_are_drawn_before_the_last_byte_has_come(open_page, count):
    page = open_page("model=bert&view=model&text=the+cat")
    expect(page.locator(HERE)).to_have_count(HEADS)
    runs = []
    page.on("request", lambda request: "/infer" in request.url and runs.append(request))
    limit(page, 6_000)
    page.get_by_role("textbox", name="text", exact=True).fill(words(count))
    page.wait_for_function(SOME, timeout=30_000)
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "true")
    assert ink(page, 0) > 1
    assert ink(page, HEADS - 1) == 0
    limit(page, -1)
    expect(page.locator(HERE)).to_have_count(HEADS, timeout=60_000)
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false")
    assert ink(page, HEADS - 1) > 1
    assert len(runs) == 1


def test_a_newer_run_ends_the_answer_that_is_coming(open_page):
    page = open_page("model=bert&view=model&text=the+cat")
    expect(page.locator(HERE)).to_have_count(HEADS)
    failed = []
    page.on("requestfailed", lambda request: failed.append((request.url.split("/")[-1], request.failure)))
    limit(page, 6_000)
    text = page.get_by_role("textbox", name="text", exact=True)
    text.fill(words(100))
    page.wait_for_function(SOME, timeout=30_000)
    text.fill("the cat sat")
    expect(page.locator(HERE)).to_have_count(HEADS, timeout=30_000)
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false")
    assert failed == [("infer", "net::ERR_ABORTED")]
    assert page.eval_on_selector(".thumbnail canvas", "(canvas) => canvas.width") == 5


def test_a_lost_connection_is_said_and_the_heads_that_came_stay(open_page):
    page = open_page("model=bert&view=model&text=the+cat")
    expect(page.locator(HERE)).to_have_count(HEADS)

    def cut(route: Route) -> None:
        answer = route.fetch()
        headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
        route.fulfill(status=200, headers=headers, body=answer.body()[: len(answer.body()) // 2])

    page.route("**/infer", cut)
    page.get_by_role("textbox", name="text", exact=True).fill(words(100))
    expect(page.locator(".bad")).to_contain_text("Not all heads came: the connection was lost")
    assert 0 < page.locator(HERE).count() < HEADS
    page.unroute("**/infer")
    page.get_by_role("button", name="try again").click()
    expect(page.locator(HERE)).to_have_count(HEADS)
    expect(page.locator(".bad")).to_have_count(0)


def test_the_pictures_are_those_of_a_whole_answer(open_page):
    page = open_page(f"model=bert&view=model&text={words(100).replace(' ', '+')}&threshold=0.02&range=global")
    expect(page.locator(HERE)).to_have_count(HEADS)
    whole = [pixels(page, f".thumbnail:nth-child({i + 1}) canvas", 0, 0, 64, 64) for i in range(HEADS)]
    text = page.get_by_role("textbox", name="text", exact=True)
    text.fill("the cat")
    expect(page.locator(".count")).to_contain_text("4 of")
    limit(page, 6_000)
    text.fill(words(100))
    page.wait_for_function(SOME, timeout=30_000)
    limit(page, -1)
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false", timeout=60_000)
    for i, picture in enumerate(whole):
        np.testing.assert_array_equal(
            pixels(page, f".thumbnail:nth-child({i + 1}) canvas", 0, 0, 64, 64), picture, strict=True
        )
