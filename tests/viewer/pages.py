"""What tests of drawn views share: attention that the test chooses, and the pixels of a canvas."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from playwright.sync_api import Page, expect

WORDS = ["it", "saw", "an", "old", "ship", "at", "sea", "."]
SCORES = 30 * np.roll(np.eye(8), 3, axis=1)  # each word looks at the one 3 places on,
SCORES[7] = 0  # "." at all words alike


def fields_of(scores: np.ndarray) -> dict[str, Any]:
    """A query, key and value for ``scaled_dot_product`` whose scores are ``scores`` [m, n]."""
    m, n = scores.shape
    if m == n and np.count_nonzero(scores) == 1:  # two dimensions are enough for one cell
        (row,), (column,) = np.nonzero(scores)
        query, key = np.zeros((m, 2)), np.zeros((n, 2))
        query[row, 0], key[column, 0] = scores[row, column] * np.sqrt(2), 1
    else:
        query, key = scores * np.sqrt(n), np.eye(n)
    return {name: values[None, None].tolist() for name, values in {"query": query, "key": key, "value": key}.items()}


def show(page: Page, scores: np.ndarray, words: Sequence[str], view: str) -> None:
    """Open the page on ``scores`` in place of its own sentence; ``words`` have "it", which is held at first."""
    example(page, {"words": list(words), **fields_of(scores)})
    page.get_by_role("button", name="clear").click()
    page.get_by_role("tab", name=view).click()


def example(page: Page, fields: dict[str, Any], settings: str = "") -> None:
    """Open the page on tensors in place of its own sentence, with a fragment of ``settings``."""
    page.route("**/example.json", lambda route: route.fulfill(json=fields))
    url = page.url.split("#")[0]
    page.goto("about:blank")
    page.goto(f"{url}#{settings}")
    expect(page.get_by_role("status")).to_contain_text("looks at", timeout=30_000)


def drawn(page: Page) -> None:
    """Wait for two frames: what was asked for is drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def pixels(page: Page, selector: str, x: float, y: float, width: float = 1, height: float = 1) -> np.ndarray:
    """Red, green, blue and alpha [height, width, 4] of a part of a canvas, in its pixels."""
    drawn(page)
    data = page.eval_on_selector(
        selector,
        """(canvas, [x, y, width, height]) => {
          const copy = new OffscreenCanvas(width, height).getContext("2d");
          copy.drawImage(canvas, -x, -y);
          return Array.from(copy.getImageData(0, 0, width, height).data);
        }""",
        [round(x), round(y), round(width), round(height)],
    )
    return np.array(data, dtype=np.uint8).reshape(round(height), round(width), 4)


def fragment(page: Page) -> str:
    """The settings in the page's address."""
    drawn(page)
    return page.evaluate("location.hash")
