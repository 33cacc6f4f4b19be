"""What the tests share: what they give to the page, and the numbers and pixels that it shows."""

import base64
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Download, Locator, Page, expect

from tests.support.waiting import until

EXAMPLE = "model=scaled_dot_product&sentence=true&view=head&head=1&query=10"  # the sentence whose tensors the page has
HEAT_MAP = ".heat-map [role=application]"
WORDS = ["it", "saw", "an", "old", "ship", "at", "sea", "."]
SCORES = 30 * np.roll(np.eye(8), 3, axis=1)  # each word looks at the one 3 places on,
SCORES[7] = 0  # "." at all words alike

IN_PARTS = """(part) => {
  // the next stream of a path with this part comes by half until the test calls release(), lose() or fail()
  const fetchWhole = window.fetch;
  window.fetch = async (path, options) => {
    if (!String(path).includes(part)) return fetchWhole(path, options);
    window.fetch = fetchWhole;
    const answer = await fetchWhole(path, options);
    const events = (await answer.text()).split(/(?<=\\n\\n)/);
    const half = Math.floor(events.length / 2);
    const bytes = (some) => new TextEncoder().encode(some.join(""));
    const start = (body) => {
      body.enqueue(bytes(events.slice(0, half)));
      const end = (last) => { body.enqueue(bytes(last)); body.close(); };
      window.release = () => end(events.slice(half));
      window.lose = () => body.error(new TypeError("network error"));
      window.fail = (problem) => end([`event: error\\ndata: ${JSON.stringify(problem)}\\n\\n`]);
      options.signal.addEventListener("abort", () => body.error(options.signal.reason));
    };
    return new Response(new ReadableStream({ start }), { headers: answer.headers });
  };
}"""


def softmax(scores: np.ndarray) -> np.ndarray:
    """Of each row, in float64."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attend(query: np.ndarray, key: np.ndarray, scale: float | None = None) -> np.ndarray:
    """The weights [..., m, n] of scaled dot-product attention, in float64."""
    query, key = np.asarray(query, np.float64), np.asarray(key, np.float64)
    return softmax(query @ np.swapaxes(key, -1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale))


def selected(page: Page) -> dict[int, str]:
    """The listed weights of the selected query, by key."""
    items = page.locator(".selection li")
    expect(items.first).to_be_visible()
    pairs = "(items) => items.map((item) => [item.dataset.place, item.querySelector('.value').textContent])"
    return {int(key): text for key, text in items.evaluate_all(pairs)}


def number(text: str) -> float:
    """A number as the page writes it."""
    return float(text.replace("−", "-"))


def expect_row(page: Page, weights: np.ndarray) -> None:
    """Wait until the selected query has these weights. The page shows the largest, as percentages with titles.

    It leaves out those that are masked, which are 0, and beyond the first three those that are "< 0.1 %".
    """
    least = min(8, max(np.count_nonzero(weights > 0.00051), min(3, np.count_nonzero(weights))))

    def is_of(text: str, title: str, weight: float) -> bool:
        is_near = abs(number(title.split()[0]) - weight) <= 5.2e-5
        return is_near and text in [percent(weight + error) for error in (-2e-6, 0, 2e-6)]

    def is_shown() -> bool:
        pairs = "(values) => values.map((one) => [one.closest('li').dataset.place, one.textContent, one.title])"
        shown = page.locator(".selection .value").evaluate_all(pairs)
        return least <= len(shown) <= min(8, len(weights)) and all(
            is_of(text, title, weights[int(key)]) for key, text, title in shown
        )

    until(is_shown, 20)


def percent(share: float, decimals: int = 0) -> str:
    """A probability as the page has it, if it is large with ``decimals``."""
    if 0 < share < 0.0005:
        return "<\u00a00.1\u00a0%"
    if 0.9995 <= share < 1 - 1e-6:
        return ">\u00a099.9\u00a0%"
    return f"{100 * share:.{1 if share < 0.0995 or 0.995 <= share < 1 - 1e-6 else decimals}f}\u00a0%"


def expect_value(page: Page, weight: float) -> None:
    """Wait until the selected pair has this weight."""
    expect(page.locator(".selection .value").first).to_have_attribute("title", f"{weight:.4f}")


def fields_of(scores: np.ndarray) -> dict[str, Any]:
    """A query, key and value for ``scaled_dot_product`` whose scores are ``scores`` [m, n]."""
    columns = np.flatnonzero(scores.any(0))  # a dimension for each is enough
    query, key = scores[:, columns] * np.sqrt(len(columns)), np.eye(scores.shape[1])[:, columns]
    return {name: values[None, None].tolist() for name, values in {"query": query, "key": key, "value": key}.items()}


def show(
    open_page: Callable[..., Page], scores: np.ndarray, words: Sequence[str], view: str, settings: str = "", **options
) -> Page:
    """Open the page on ``scores`` in place of its own sentence; ``words`` have "it", which is held no more."""
    fragment = f"model=scaled_dot_product&sentence=true&view=head&query={list(words).index('it')}&{settings}"
    page = open_page(fragment, tensors={"words": list(words), **fields_of(scores)}, **options)
    expect(page.locator(".selection")).to_contain_text("looks at", timeout=30_000)
    page.get_by_role("button", name="clear").click()
    page.get_by_role("tab", name=view).click()
    page.mouse.move(5, 5)
    return page


def display(page: Page) -> Locator:
    """The settings behind the button Display, open."""
    button = page.get_by_role("button", name="Display")
    if button.get_attribute("aria-expanded") == "false":
        button.click()
    return page.get_by_role("group", name="drawing options")


def drawn(page: Page) -> None:
    """Wait for three frames and the tasks behind them: for effects, their drawing, and its new sizes."""
    for _ in range(3):
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def pixels(page: Page, selector: str, x: float = 0, y: float = 0, width: float = 0, height: float = 0) -> np.ndarray:
    """Red, green, blue and alpha [height, width, 4] of a canvas, or of a part of it, in its pixels."""
    drawn(page)
    width, height, data = page.eval_on_selector(
        selector,
        """(canvas, [x, y, width, height]) => {
          const copy = new OffscreenCanvas(width ||= canvas.width, height ||= canvas.height).getContext("2d");
          copy.drawImage(canvas, -x, -y);
          return [width, height, new Uint8Array(copy.getImageData(0, 0, width, height).data.buffer).toBase64()];
        }""",
        [round(x), round(y), round(width), round(height)],
    )
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)


def plot(page: Page) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the cells in the canvas: found by the lines of its border."""

    def border() -> tuple[int, int, int, int] | None:
        is_drawn = pixels(page, HEAT_MAP)[:, :, 3] == 255
        x, y = (np.flatnonzero(is_drawn.mean(axis) > 0.5) for axis in (0, 1))
        return (int(x[0]) + 1, int(y[0]) + 1, int(x[-1]), int(y[-1])) if len(x) and len(y) else None

    return until(border)


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


def centre(page: Page, row: int, column: int) -> tuple[float, float]:
    """The middle of one of 8 x 8 cells on the page."""
    left, top, right, bottom = np.array(plot(page)) / page.evaluate("devicePixelRatio")
    box = page.locator(HEAT_MAP).bounding_box()
    return box["x"] + left + (column + 0.5) * (right - left) / 8, box["y"] + top + (row + 0.5) * (bottom - top) / 8


def picture_of_view(page: Page) -> Image.Image:
    """The view as it is painted, once two pictures in a row are alike."""
    pictures = [Image.new("RGB", (1, 1))]

    def rests() -> bool:
        drawn(page)
        shot = page.get_by_role("tabpanel").screenshot()
        pictures.append(Image.open(io.BytesIO(shot)).convert("RGB"))
        return alike(*pictures[-2:])

    until(rests)
    return pictures[-1]


def alike(one: Image.Image, other: Image.Image) -> bool:
    return one.size == other.size and int(np.abs(np.asarray(one, np.int16) - np.asarray(other, np.int16)).max()) <= 4


def paste(page: Page, text: str = "", **tensors) -> Locator:
    """Give tensors, or another ``text``, as JSON; the box that has it."""
    page.get_by_role("radio", name="file or JSON").check()
    box = page.get_by_role("textbox", name="JSON")
    box.fill(text or json.dumps(tensors))
    return box


def choose(page: Page, *paths: Path) -> None:
    """Give files."""
    page.get_by_role("radio", name=re.compile("^(file or JSON|tensors)$")).check()
    page.get_by_label("files", exact=True).set_input_files(list(paths))


def drag(page: Page, events: Sequence[str], name: str, content: bytes, kind: str = "") -> None:
    """Send the body events of a file that is dragged."""
    transfer = page.evaluate_handle(
        """async ([name, type, text]) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([Uint8Array.fromBase64(text)], name, { type }));
          return transfer;
        }""",
        [name, kind, base64.b64encode(content).decode()],
    )
    for event in events:
        page.locator("body").dispatch_event(event, {"dataTransfer": transfer})


def take(page: Page, name: str) -> Download:
    """Press a button of the menu "Export", and read the file."""
    button = page.get_by_role("button", name=name, exact=True)
    if not button.is_visible():
        page.get_by_text("Export").click()
    with page.expect_download() as download:
        button.click()
    return download.value


def copied(page: Page, name: str) -> str:
    """Press one of the menu's buttons that copy, and read the clipboard."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name=re.compile(f"^copy (as )?{name}$"))
    if not button.is_visible():
        page.get_by_text("Export").click()
    button.click()
    expect(page.locator(".take [role=status]")).to_have_text(f"{name} copied")
    return page.evaluate("navigator.clipboard.readText()")


def violations(page: Page, **options) -> list[tuple[str, str]]:
    """What axe finds, also whether the name of each control has the words that are seen."""
    rules = {"label-content-name-mismatch": {"enabled": True}}
    found = Axe().run(page, options={"rules": rules, **options}).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found]
