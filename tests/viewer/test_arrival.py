"""An answer in parts: heads are drawn as they come, a newer run ends it, and a lost connection is reported."""

import json

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.viewer.pages import pixels

HEADS = 24
HERE = ".thumbnail[aria-busy=false]"
SOME = f"() => {{ const here = document.querySelectorAll('{HERE}').length; return 0 < here && here < {HEADS}; }}"
IN_PARTS = """() => {  // the next answer comes by half until the test calls release(), or lose()
  const fetchWhole = window.fetch;
  window.fetch = async (path, options) => {
    if (!String(path).endsWith("/infer")) return fetchWhole(path, options);
    window.fetch = fetchWhole;
    const answer = await fetchWhole(path, options);
    const bytes = new Uint8Array(await answer.arrayBuffer());
    const half = Math.floor(bytes.length / 2);
    const start = (body) => {
      body.enqueue(bytes.subarray(0, half));
      window.release = () => { body.enqueue(bytes.subarray(half)); body.close(); };
      window.lose = () => body.error(new TypeError("network error"));
    };
    return new Response(new ReadableStream({ start }), { headers: answer.headers });
  };
}"""


def settings(tokens: int) -> str:
    sizes = {"batch": 1, "heads": HEADS, "kv_heads": HEADS, "m": tokens, "n": tokens}
    return f"model=scaled_dot_product&view=model&random={json.dumps({'seed': 1, 'sizes': sizes})}"


def change(page: Page, fragment: str) -> None:
    """Ask for other settings."""
    page.evaluate("(fragment) => { location.hash = fragment; }", fragment)


def expect_all(page: Page, tokens: int) -> None:
    """Wait until all heads of so many tokens are drawn: those of more than 64 as smaller pictures."""
    page.wait_for_function(f"() => document.querySelector('.thumbnail canvas')?.width === {min(tokens, 64)}")
    expect(page.locator(HERE)).to_have_count(HEADS)
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false")


def picture(page: Page, head: int) -> np.ndarray:
    """The pixels of a thumbnail."""
    return pixels(page, f".thumbnail canvas >> nth={head}")


@pytest.fixture
def page(open_page) -> Page:
    page = open_page(settings(8), viewport={"width": 3400, "height": 900})  # each picture has 64 pixels
    expect_all(page, 8)
    return page


@pytest.mark.parametrize("tokens", [40, 100])  # all weights, and small pictures of more
def test_heads_are_drawn_before_the_last_byte_has_come(page, tokens):
    """And as when the answer comes at once."""
    looks = f"{settings(tokens)}&threshold=0.05&range=global"
    heads = (0, HEADS // 3, HEADS - 1)
    change(page, looks)
    expect_all(page, tokens)
    whole = [picture(page, head) for head in heads]
    change(page, settings(8))
    expect_all(page, 8)
    runs = []
    page.on("request", lambda request: "/infer" in request.url and runs.append(request))
    page.evaluate(IN_PARTS)
    change(page, looks)
    page.wait_for_function(SOME)
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "true")
    assert picture(page, 0).std() > 1
    assert not picture(page, HEADS - 1).any()
    page.evaluate("release()")
    expect_all(page, tokens)
    for head, expected in zip(heads, whole, strict=True):
        np.testing.assert_array_equal(picture(page, head), expected, strict=True)
    assert len(runs) == 1 + (tokens > 64)  # the other one is of the selected head


def test_a_lost_connection_is_said_and_the_heads_that_came_stay(page):
    page.evaluate(IN_PARTS)
    change(page, settings(100))
    page.wait_for_function(SOME)
    page.evaluate("lose()")
    expect(page.locator(".bad")).to_contain_text("Not all heads arrived: the connection was lost")
    page.wait_for_function(SOME)
    page.get_by_role("button", name="try again").click()
    expect_all(page, 100)
    expect(page.locator(".bad")).to_have_count(0)


def test_a_newer_run_ends_the_answer_that_is_coming(page):
    failed = []
    page.on("requestfailed", lambda request: failed.append((request.url.split("/")[-1], request.failure)))
    network = {"offline": False, "latency": 0, "uploadThroughput": -1, "downloadThroughput": 10_000}
    page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", network)
    change(page, settings(100))
    page.wait_for_function(SOME)
    change(page, settings(9))
    expect_all(page, 9)
    assert failed == [("infer", "net::ERR_ABORTED")]
