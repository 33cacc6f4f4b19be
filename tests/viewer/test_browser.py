"""What a browser does by itself: back and forward, another theme, a sharp screen, fingers, paper."""

import io

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import CDPSession, Page, expect

from tests.viewer.pages import HEAT_MAP, SCORES, WORDS, cells, drawn, plot, show

TEXT = "model=bert&text=the+cat+sat+on+the+mat"


def test_back_and_forward_lead_through_views_and_models(open_page):
    page = open_page("model=bert&text=the+cat")
    tab = page.get_by_role("tab", selected=True)
    page.locator(".thumbnail").nth(2).click()
    expect(tab).to_have_text("Head")
    page.get_by_role("combobox", name="scale").select_option("log")  # which is no step
    page.get_by_role("tab", name="Matrix").click()
    expect(page.locator(HEAT_MAP)).to_be_visible()
    page.get_by_role("combobox", name="model", exact=True).select_option("additive")
    expect(page.get_by_role("radio", name="example")).to_be_checked()
    page.go_back()
    expect(page.get_by_role("textbox", name="text", exact=True)).to_have_value("the cat")
    expect(tab).to_have_text("Matrix")
    page.go_back()
    expect(tab).to_have_text("Head")
    expect(page.get_by_role("combobox", name="scale")).to_have_value("log")
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value("2")
    page.go_back()
    expect(tab).to_have_text("Model")
    expect(page.locator(".thumbnail")).to_have_count(4)
    page.go_forward()
    expect(page.get_by_role("button", name="head 2")).to_have_attribute("aria-pressed", "true")


def look(page: Page) -> np.ndarray:
    """The view as it is painted, when it does not change any more."""
    last = np.empty(0)
    for _ in range(40):
        shot = Image.open(io.BytesIO(page.get_by_role("tabpanel").screenshot())).convert("RGB")
        now = np.asarray(shot, np.int16)
        if alike(now, last):
            return now
        last = now
        page.wait_for_timeout(150)
    raise AssertionError("the view does not come to rest")


def alike(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and int(np.abs(one - other).max()) <= 4


def test_a_change_of_the_theme_is_drawn_at_once(open_page):
    """As if the page had been opened with the other theme."""
    page = open_page(f"{TEXT}&query=1&ablated=[[0,1]]")
    theme = page.get_by_role("combobox", name="theme")
    seen = {}

    def turn(view: str) -> None:
        page.get_by_role("tab", name=view).click()
        page.mouse.move(5, 5)
        expect(page.locator("#view :is(canvas, .chip)").first).to_be_visible()

    for view in ("Model", "Head", "Matrix", "Tokens", "Ablate"):
        page.emulate_media(color_scheme="light")
        turn(view)
        light = look(page)
        page.emulate_media(color_scheme="dark")
        dark = look(page)
        assert not alike(light, dark)
        seen[view] = light, dark
    page.reload()
    for view, (light, dark) in seen.items():
        turn(view)
        assert alike(look(page), dark)
        theme.select_option("light")
        page.mouse.move(5, 5)
        assert alike(look(page), light)
        theme.select_option("system")


def centre(page: Page, row: int, column: int) -> tuple[float, float]:
    """The middle of one of 8 x 8 cells on the page."""
    left, top, right, bottom = np.array(plot(page)) / page.evaluate("devicePixelRatio")
    box = page.locator(HEAT_MAP).bounding_box()
    return box["x"] + left + (column + 0.5) * (right - left) / 8, box["y"] + top + (row + 0.5) * (bottom - top) / 8


def test_a_screen_with_two_pixels_in_one_is_used(open_page):
    """All pixels are drawn, and cells are where the pointer finds them."""
    page = show(open_page, SCORES, WORDS, "Matrix", "palette=greys", device_scale_factor=2)
    page.mouse.move(5, 5)
    size = "(canvas) => [canvas.width, canvas.height, canvas.clientWidth, canvas.clientHeight]"
    dark = cells(page, 8, 8)
    width, height, *inner = page.eval_on_selector(HEAT_MAP, size)
    assert [width, height] == pytest.approx([2 * length for length in inner], abs=1)
    assert (np.argmax(dark[:7], axis=1) == (np.arange(7) + 3) % 8).all()
    page.mouse.click(*centre(page, 1, 4))
    expect(page.locator(".selection")).to_contain_text("“saw” (1) looks at “ship” (4) 1.0000")


def fingers(session: CDPSession, kind: str, *points: tuple[float, float]) -> None:
    touches = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
    session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})


def test_fingers_hold_cells_zoom_and_scroll(open_page):
    page = show(
        open_page, SCORES, WORDS, "Matrix", "palette=greys", has_touch=True, is_mobile=True, width=390, height=800
    )
    page.locator(HEAT_MAP).scroll_into_view_if_needed()
    page.touchscreen.tap(*centre(page, 1, 4))
    expect(page.locator(".selection")).to_contain_text("“saw” (1) looks at “ship” (4)")
    page.touchscreen.tap(*centre(page, 1, 4))
    expect(page.locator(".selection")).to_contain_text("Point at a token")
    session = page.context.new_cdp_session(page)
    box = page.locator(HEAT_MAP).bounding_box()
    before = cells(page, 8, 8)
    x, y = centre(page, 1, 4)
    fingers(session, "touchStart", (x - 10, y), (x + 10, y))
    for step in range(1, 6):
        fingers(session, "touchMove", (x - 10 - 8 * step, y), (x + 10 + 8 * step, y))
    fingers(session, "touchEnd")
    drawn(page)
    after = cells(page, 8, 8)
    assert (before > 0.6).sum() == 7
    assert (after > 0.6).sum() > 14  # the same cell is larger, and nothing was held
    expect(page.locator(".selection")).to_contain_text("Point at a token")
    assert page.evaluate("visualViewport.scale") == pytest.approx(1, abs=0.01)
    page.get_by_role("button", name="whole matrix").tap()
    start = page.evaluate("scrollY")
    fingers(session, "touchStart", (box["x"] + 200, 500))
    for step in range(1, 9):
        fingers(session, "touchMove", (box["x"] + 200, 500 + 30 * step))
    fingers(session, "touchEnd")
    page.wait_for_function(f"() => scrollY < {start} - 50")


def test_paper_has_the_drawing_and_where_it_is_from(open_page):
    page = open_page(f"{TEXT}&query=1", width=720)
    about = page.locator(".provenance")
    for view in ("Model", "Head", "Matrix", "Tokens", "Compare"):
        page.get_by_role("tab", name=view).click()
        drawing = page.locator("#view :is(:not(.chip-colours) > canvas, .chip)").first
        expect(drawing).to_be_visible()
        expect(about).to_be_hidden()
        page.emulate_media(media="print")
        expect(about).to_contain_text("bert, version 1")
        expect(about).to_contain_text("the cat sat on the mat")
        controls = page.evaluate(
            """() => [...document.querySelectorAll("button, select, input, textarea, summary, a, [role=tab]")]
              .filter((one) => one.checkVisibility() && !one.matches(".thumbnail, .chip, .head-chips *"))
              .map((one) => one.outerHTML.slice(0, 80))"""
        )
        assert controls == []
        expect(drawing).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 720
        page.emulate_media(media="screen")


PAINTED = """() => [
  document.querySelector("#view canvas").toDataURL(),
  [...document.querySelectorAll(".chip")].map((chip) => chip.style.backgroundColor).filter(Boolean).length,
]"""


def test_paper_is_light_and_the_screen_dark_again(open_page):
    page = open_page(f"{TEXT}&query=1&key=2")
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = ({PAINTED})(); }})")
    for view in ("Model", "Matrix", "Tokens", "Compare"):  # the colours of heads are those of both themes
        page.emulate_media(color_scheme="light")
        page.get_by_role("tab", name=view).click()
        expect(page.locator("#view canvas").first).to_be_visible()
        expect(page.locator(".thumbnail[aria-busy=true]")).to_have_count(0)
        drawn(page)
        light, _ = page.evaluate(PAINTED)
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(f"(light) => ({PAINTED})()[0] !== light", arg=light)
        drawn(page)
        dark = page.evaluate(PAINTED)
        page.pdf()  # the browser's event comes before it
        printed, chips = page.evaluate("window.printed")
        assert printed == light
        assert (chips > 0) == (view == "Tokens")  # there the canvas is for the screen only
        page.wait_for_function(f"(dark) => JSON.stringify(({PAINTED})()) === JSON.stringify(dark)", arg=dark)
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        page.emulate_media(media="screen")
