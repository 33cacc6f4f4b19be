"""The heat map: its pixels are the weights, at every size, and its cells can be reached by pointer and keys."""

import json
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.viewer.pages import HEAT_MAP, WORDS, cells, drawn, example, fragment, pixels, plot, show

CANVAS = HEAT_MAP
POINTER = ".heat-map .pointer"


@pytest.fixture
def page(open_page) -> Page:
    """Each word looks at the one 3 places on."""
    page = show(open_page, 30 * np.roll(np.eye(8), 3, axis=1), WORDS, "Matrix", "palette=greys")
    page.mouse.move(5, 5)
    return page


def centre(page: Page, row: int, column: int, m: int = 8, n: int = 8) -> tuple[float, float]:
    """The middle of a cell on the page."""
    left, top, right, bottom = plot(page)
    box = page.locator(CANVAS).bounding_box()
    return box["x"] + left + (column + 0.5) * (right - left) / n, box["y"] + top + (row + 0.5) * (bottom - top) / m


def test_each_cell_has_the_colour_of_its_weight(page):
    dark = cells(page, 8, 8)
    assert (np.argmax(dark, axis=1) == (np.arange(8) + 3) % 8).all()
    assert dark.max(axis=1).min() > 0.6
    assert np.sort(dark, axis=1)[:, :-1].max() < 0.3


def test_a_pointer_shows_the_weight_and_a_click_holds_the_cell(page):
    page.mouse.move(*centre(page, 1, 4))
    expect(page.locator(".tip")).to_have_text("“saw” → “ship” 1.0000")
    page.mouse.click(*centre(page, 1, 4))
    expect(page.locator(".selection")).to_contain_text("“saw” (1) looks at “ship” (4)")
    assert "query=1&key=4" in fragment(page)
    page.mouse.move(5, 5)
    expect(page.locator(".tip")).to_have_text("“saw” → “ship” 1.0000")
    page.mouse.click(*centre(page, 1, 4))
    expect(page.locator(".selection")).to_contain_text("Point at a token")


def test_what_follows_the_pointer_is_drawn_above_the_map(page):
    left, top, right, bottom = plot(page)
    area = (0, 0, right + 40, bottom)
    before = pixels(page, CANVAS, *area)
    assert not pixels(page, POINTER, *area).any()
    page.mouse.move(*centre(page, 2, 3))
    above = pixels(page, POINTER, left, top - 30, right - left, 20)[:, :, 3]
    assert set(np.flatnonzero(above.all(axis=0)) * 8 // (right - left)) == {5}  # the bar: "an" looks at "at"
    side = (bottom - top) // 8
    frame = pixels(page, POINTER, left + 3 * side // 2, top + 2 * side - 2, 1, side + 4)[:, 0, 3]
    assert (np.flatnonzero(frame > 200) // side).tolist() != []
    np.testing.assert_array_equal(pixels(page, CANVAS, *area), before)
    page.mouse.move(5, 5)
    assert not pixels(page, POINTER, *area).any()
    np.testing.assert_array_equal(pixels(page, CANVAS, *area), before)


def test_bars_show_what_the_held_query_looks_at(page):
    left, top, right, _ = plot(page)
    above = (left, top - 30, right - left, 20)
    assert not pixels(page, CANVAS, *above)[:, :, 3].any()
    page.mouse.click(*centre(page, 2, 0))
    page.mouse.move(5, 5)
    columns = np.flatnonzero(pixels(page, CANVAS, *above)[:, :, 3].all(axis=0)) * 8 // (right - left)
    assert set(columns) == {5}  # "an" looks at "at"


def test_keys_hold_move_zoom_and_release(page):
    page.locator(CANVAS).focus()
    page.keyboard.press("ArrowDown")
    assert "query=0&key=0" in fragment(page)
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
        drawn(page)
    expect(page.locator(".selection")).to_contain_text("“saw” (1) looks at “an” (2)")
    page.keyboard.press("Escape")
    expect(page.locator(".tip")).to_be_hidden()


def test_masked_cells_are_hatched(open_page):
    fields = {"words": WORDS, **{name: [[[[1.0]] * 8]] for name in ("query", "key", "value")}}
    page = example(open_page, fields, f"kind=scores&parameters={quote(json.dumps({'is_causal': True}))}")
    page.get_by_role("button", name="clear").click()
    page.get_by_role("tab", name="Matrix").click()
    expect(page.get_by_role("img", name="colours from")).to_contain_text("masked")
    left, top, right, bottom = plot(page)
    width, height = (right - left) // 8, (bottom - top) // 8
    masked = pixels(page, CANVAS, right - width + 3, top + 3, width - 6, height - 6)
    seen = pixels(page, CANVAS, left + 3, bottom - height + 3, 20, 20)
    assert 0.02 < (masked[:, :, 0] < 240).mean() < 0.6
    assert masked[:, :, :3].std() > 5 > seen[:, :, :3].reshape(-1, 3).std(axis=0).max()


def test_one_weight_of_four_million_is_seen_and_can_be_zoomed_to(open_page):
    scores = np.zeros((2048, 2048))
    scores[777, 1234] = 30
    page = show(open_page, scores, ["it", *(f"word{i}" for i in range(1, 2048))], "Matrix", "palette=greys")
    page.mouse.move(5, 5)
    left, top, right, bottom = plot(page)
    dark = pixels(page, CANVAS, left + 1, top + 1, right - left - 2, bottom - top - 2)[:, :, 0] < 60
    rows, columns = np.nonzero(dark)
    assert 1 <= len(rows) <= 9
    assert abs((rows.mean() + 1.5) / (bottom - top) - 777.5 / 2048) < 2 / (bottom - top)
    assert abs((columns.mean() + 1.5) / (right - left) - 1234.5 / 2048) < 2 / (right - left)
    box = page.locator(CANVAS).bounding_box()
    page.mouse.move(box["x"] + left + columns.mean() + 1.5, box["y"] + top + rows.mean() + 1.5)
    for _ in range(20):
        page.mouse.wheel(0, -240)
    drawn(page)
    large = pixels(page, CANVAS, left + 1, top + 1, right - left - 2, bottom - top - 2)[:, :, 0] < 60
    assert large.sum() > 2000
    row, column = (int(np.median(places)) for places in np.nonzero(large))
    page.mouse.move(box["x"] + left + 1 + column, box["y"] + top + 1 + row)
    expect(page.locator(".tip")).to_contain_text("“word777” → “word1234” 1.000")
    page.mouse.down()
    page.mouse.move(box["x"] + left + 1 + column - 150, box["y"] + top + 1 + row, steps=5)
    page.mouse.up()
    page.mouse.move(5, 5)
    panned = pixels(page, CANVAS, left + 1, top + 1, right - left - 2, bottom - top - 2)[:, :, 0] < 60
    assert abs(int(np.median(np.nonzero(panned)[1])) - (column - 150)) < 12
    assert "query=777" not in fragment(page)  # a drag is no click
    page.get_by_role("button", name="whole matrix").click()
    drawn(page)
    page.mouse.move(5, 5)
    whole = pixels(page, CANVAS, left + 1, top + 1, right - left - 2, bottom - top - 2)[:, :, 0] < 60
    assert (np.argwhere(whole) == np.argwhere(dark)).all()
