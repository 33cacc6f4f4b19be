"""What tests of drawn views share: attention that the test chooses, and the pixels of a canvas."""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from playwright.sync_api import Locator, Page, expect

HEAT_MAP = ".heat-map [role=application]"
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


def show(
    open_page: Callable[..., Page], scores: np.ndarray, words: Sequence[str], view: str, settings: str = "", **options
) -> Page:
    """Open the page on ``scores`` in place of its own sentence; ``words`` have "it", which is held at first."""
    page = example(open_page, {"words": list(words), **fields_of(scores)}, settings, **options)
    page.get_by_role("button", name="clear").click()
    page.get_by_role("tab", name=view).click()
    return page


def example(open_page: Callable[..., Page], fields: dict[str, Any], settings: str = "", **options) -> Page:
    """Open the page on tensors in place of its own sentence, with a fragment of ``settings``."""
    page = open_page(settings, tensors=fields, **options)
    expect(page.locator(".selection")).to_contain_text("looks at", timeout=30_000)
    return page


def more(page: Page) -> Locator:
    """The box of the settings that are not always in sight, open."""
    box = page.locator(".more")
    if box.get_attribute("open") is None:
        box.locator("summary").click()
    return box.locator(".menu")


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
          return new Uint8Array(copy.getImageData(0, 0, width, height).data.buffer).toBase64();
        }""",
        [round(x), round(y), round(width), round(height)],
    )
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(round(height), round(width), 4)


def plot(page: Page) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the cells in the canvas: found by the lines of its border."""
    drawn(page)
    found = page.wait_for_function(
        """(selector) => {
          const canvas = document.querySelector(selector);
          const { width, height } = canvas ?? { width: 0, height: 0 };
          if (height < 2) return null;
          const copy = new OffscreenCanvas(width, height).getContext("2d");
          copy.drawImage(canvas, 0, 0);
          const { data } = copy.getImageData(0, 0, width, height);
          const rows = new Uint32Array(height), columns = new Uint32Array(width);
          for (let y = 0; y < height; y++)
            for (let x = 0; x < width; x++)
              if (data[4 * (y * width + x) + 3] === 255) [rows[y], columns[x]] = [rows[y] + 1, columns[x] + 1];
          const y = [...rows.keys()].filter((y) => rows[y] > width / 2);
          const x = [...columns.keys()].filter((x) => columns[x] > height / 2);
          return y.length && x.length ? [x[0] + 1, y[0] + 1, x.at(-1), y.at(-1)] : null;
        }""",
        arg=HEAT_MAP,
    )
    return tuple(found.json_value())


def cells(page: Page, m: int, n: int) -> np.ndarray:
    """How dark each of m x n equal parts of the plot is, from 0 to 1."""
    left, top, right, bottom = plot(page)
    grey = 1 - pixels(page, HEAT_MAP, left, top, right - left, bottom - top)[:, :, 0] / 255
    (height, width), dark = grey.shape, np.empty((m, n))
    for i, j in np.ndindex(m, n):
        part = grey[i * height // m : (i + 1) * height // m, j * width // n : (j + 1) * width // n]
        dark[i, j] = part[2:-2, 2:-2].mean()
    return dark


def fragment(page: Page) -> str:
    """The settings in the page's address."""
    drawn(page)
    return page.evaluate("location.hash")
