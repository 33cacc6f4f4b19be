"""The heat map: its pixels are the weights, at every size, and its cells can be reached by pointer and keys."""

import json
import re
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.viewer.pages import HEAT_MAP, SCORES, WORDS, cells, centre, drawn, fragment, paste, pixels, plot, show

POINTER = ".heat-map .pointer"


@pytest.fixture
def page(open_page) -> Page:
    return show(open_page, SCORES, WORDS, "Matrix", "palette=greys")


@pytest.mark.parametrize("width", [390, 1280])
def test_a_tip_is_above_the_row_of_its_cell_and_in_the_window(open_page, width):
    """Beside the column, if it has room there."""
    page = show(open_page, SCORES, WORDS, "Matrix", closed=True, viewport={"width": width, "height": 900})
    tip = page.locator(".tip")
    for row, column in ((0, 0), (0, 7), (3, 2), (3, 5), (7, 0), (7, 7)):
        x, y = centre(page, row, column)
        page.mouse.move(x, y)
        expect(tip).to_contain_text(f"“{WORDS[row]}” → “{WORDS[column]}”")
        box = tip.bounding_box()
        assert box["y"] + box["height"] < y - 8
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width
        if width == 1280:
            assert box["x"] > x or box["x"] + box["width"] < x


@pytest.mark.parametrize("ratio", [1, 2])
def test_each_cell_has_the_colour_of_its_weight_and_a_click_holds_it(open_page, ratio):
    """On a screen with two pixels in one, too, all of which are drawn."""
    page = show(open_page, SCORES, WORDS, "Matrix", "palette=greys", device_scale_factor=ratio)
    dark = cells(page, 8, 8)[:7]
    size = "(canvas) => [canvas.width, canvas.height, canvas.clientWidth, canvas.clientHeight]"
    width, height, *inner = page.eval_on_selector(HEAT_MAP, size)
    assert [width, height] == pytest.approx([ratio * length for length in inner], abs=1)
    assert (np.argmax(dark, axis=1) == (np.arange(7) + 3) % 8).all()
    assert dark.max(axis=1).min() > 0.6
    assert np.sort(dark, axis=1)[:, :-1].max() < 0.3
    page.mouse.move(*centre(page, 1, 4))
    expect(page.locator(".tip")).to_have_text("“saw” → “ship” 100\u00a0%")
    page.mouse.click(*centre(page, 1, 4))
    expect(page.locator(".selection")).to_contain_text("“saw” (1) looks at “ship” (4) 100 %")
    assert "query=1&key=4" in fragment(page)
    page.mouse.move(5, 5)
    expect(page.locator(".tip")).to_be_hidden()  # the cell has the number
    page.mouse.click(*centre(page, 1, 4))
    expect(page.locator(".selection")).to_contain_text("Point at a token")


def test_what_follows_the_pointer_is_drawn_above_the_map(page):
    left, top, right, bottom = plot(page)
    area = (0, 0, right + 40, bottom)
    before = pixels(page, HEAT_MAP, *area)

    def bars(canvas: str) -> set[int]:
        """The columns over which there is a bar."""
        alpha = pixels(page, canvas, left, bottom + 10, right - left, 20)[:, :, 3]
        parts = np.array_split(alpha.all(axis=0), 8)
        return {column for column, part in enumerate(parts) if part.mean() > 0.5}

    def has_name(canvas: str) -> bool:
        """Whether the bars beside the map have a word above them."""
        return bool(pixels(page, canvas, right + 4, 0, 34, top - 2)[:, :, 3].any())

    assert not pixels(page, POINTER, *area).any()
    page.mouse.move(*centre(page, 2, 3))
    assert bars(POINTER) == {5}  # "an" looks at "at"
    assert has_name(POINTER)
    side = (bottom - top) // 8
    frame = pixels(page, POINTER, left + 3 * side // 2, top + 2 * side - 2, 1, side + 4)[:, 0, 3]
    assert (frame > 200).any()
    np.testing.assert_array_equal(pixels(page, HEAT_MAP, *area), before)
    page.mouse.move(5, 5)
    assert not pixels(page, POINTER, *area).any()
    np.testing.assert_array_equal(pixels(page, HEAT_MAP, *area), before)
    assert bars(HEAT_MAP) == set()
    assert not has_name(HEAT_MAP)
    page.mouse.click(*centre(page, 2, 0))
    page.mouse.move(5, 5)
    assert bars(HEAT_MAP) == {5}  # it is held
    assert has_name(HEAT_MAP)


@pytest.mark.parametrize("width", [1440, 2560])
def test_the_map_fits_the_window_and_words_stand_at_their_cells(open_page, width):
    page = show(
        open_page, SCORES, WORDS, "Matrix", "palette=greys", viewport={"width": width, "height": 900}, closed=True
    )
    left, top, right, _ = plot(page)
    written = pixels(page, HEAT_MAP, left, 0, right - left, top - 2)[:, :, 3].max(axis=1)
    assert np.flatnonzero(written > 100).max() > top - 14
    assert right > 0.6 * width
    assert top <= 32  # the words of columns are level
    page.mouse.click(*centre(page, 1, 4))
    expect(page.locator(".ranking, .headline").first).to_be_visible()
    box = page.locator(".workspace > .selection").bounding_box()
    assert box["y"] + box["height"] <= 900


def test_a_small_cell_has_a_tip_only_while_it_is_pointed_at(open_page):
    """Pinned, it would cover the cells around it; the selection has its number."""
    page = open_page('model=multi_head&view=matrix&query=1&key=2&random={"seed":1,"sizes":{"batch":1,"m":60,"n":60}}')
    expect(page.locator(".selection .value").first).to_be_visible()
    left, top, right, bottom = (length / page.evaluate("devicePixelRatio") for length in plot(page))
    expect(page.locator(".tip")).to_be_hidden()
    page.locator(HEAT_MAP).hover(position={"x": (left + right) / 2, "y": (top + bottom) / 2})
    expect(page.locator(".tip")).to_have_text(re.compile(r"“\d+” → “\d+” (< )?\d+\.\d\s%"))


def test_keys_hold_move_zoom_and_release(page):
    page.locator(HEAT_MAP).focus()
    page.keyboard.press("ArrowDown")
    assert "query=0&key=0" in fragment(page)
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
        drawn(page)
    expect(page.locator(".selection")).to_contain_text("“saw” (1) looks at “an” (2)")
    page.keyboard.press("Escape")
    expect(page.locator(".tip")).to_be_hidden()


def test_masked_cells_are_hatched(open_page):
    settings = f"kind=scores&parameters={quote(json.dumps({'is_causal': True}))}"
    page = show(open_page, np.eye(8), WORDS, "Matrix", settings)
    expect(page.get_by_role("img", name="colours from")).to_contain_text("masked")
    left, top, right, bottom = plot(page)
    width, height = (right - left) // 8, (bottom - top) // 8
    masked = pixels(page, HEAT_MAP, right - width + 3, top + 3, width - 6, height - 6)
    seen = pixels(page, HEAT_MAP, left + 3, bottom - height + 3, 20, 20)
    assert 0.02 < (masked[:, :, 0] < 240).mean() < 0.6
    assert masked[:, :, :3].std() > 5 > seen[:, :, :3].reshape(-1, 3).std(axis=0).max()


def test_masked_cells_of_weights_are_hatched_also_without_a_field_for_the_mask(open_page):
    page = open_page("model=scaled_dot_product&view=matrix&query=0&key=0")
    query, key = np.eye(4), 20 * np.eye(4)
    causal = np.tri(4, dtype=bool).tolist()
    paste(page, query=query.tolist(), key=key.tolist(), value=key.tolist(), scale=1.0, attn_mask=causal)
    expect(page.get_by_role("img", name="colours from")).to_contain_text("masked")
    left, top, right, bottom = plot(page)
    width, height = (right - left) / 4, (bottom - top) / 4

    def hatched(row: int, column: int) -> bool:
        """Whether a corner of the cell, where no number is, has several colours."""
        cell = pixels(page, HEAT_MAP, left + column * width + 4, top + row * height + 4, 16, 8)
        return bool(cell[:, :, :3].reshape(-1, 3).std(axis=0).max() > 5)

    assert [[hatched(row, column) for column in range(4)] for row in range(1, 4)] == [
        [False, False, True, True],  # the first weight is 2e-9
        [False, False, False, True],
        [False, False, False, False],
    ]
    x, y = (left + 2.5 * width, top + 1.5 * height)
    ratio = page.evaluate("devicePixelRatio")
    page.locator(HEAT_MAP).hover(position={"x": x / ratio, "y": y / ratio})
    expect(page.locator(".tip")).to_have_text("“1” → “2” masked")


def test_numbers_in_cells_are_rounded_alike(open_page):
    """A dot is in place of what rounds to 0, unless all numbers are that small; weights are in per cent."""
    page = open_page()
    script = """async ([values, top, isShare, room]) => {
        const { short } = await import("heed/data/display.js");
        return values.map((value) => short(value, top, isShare, room));
    }"""
    values = [0, 2e-8, 0.0049, 0.0051, -0.004, -0.2, 12.34, 123.4]
    assert page.evaluate(script, [values, 123.4]) == ["0", "·", "·", "0.01", "·", "−0.20", "12.3", "123"]
    assert page.evaluate(script, [[0, 2e-8, -0.004], 0.004]) == ["0", "2e−8", "−4e−3"]
    shares = [0, 0.0004, 0.0051, -0.004, -0.2, 0.123, 0.9999, 1]
    assert page.evaluate(script, [shares, 1, True]) == ["0", "·", "0.5", "−0.4", "−20", "12", ">99", "100"]
    assert page.evaluate(script, [[0.9999], 1, True, 6]) == [">\u200999.9"]
    narrow = ["0", "·", "1", "·", "−20", "12", ">99", "100"]  # in a cell with room for three characters
    assert page.evaluate(script, [shares, 1, True, 3]) == narrow
    assert page.evaluate(script, [[4e-6, 4e-5, -0.004], 0.004, True]) == ["·", "0.004", "−0.400"]
    script = """async (changes) => {
        const { points } = await import("heed/data/display.js");
        return changes.map((change) => points(change).replaceAll("\\u00a0", " "));
    }"""
    said = ["−12 points", "< 0.1 points", "0.0 points", "+5.1 points", "+99.9 points"]
    assert page.evaluate(script, [-0.12, -1e-4, 0, 0.051, 0.9999]) == said


def test_the_cell_of_the_headline_is_framed_until_a_word_is_pinned(open_page):
    scores = np.zeros((4, 4))
    scores[2, 1] = 3
    page = show(open_page, scores, WORDS[:4], "Matrix", "palette=greys")
    expect(page.locator(".headline")).to_contain_text(f"“{WORDS[2]}” → “{WORDS[1]}”: 87")

    def frames() -> list[tuple[int, int]]:
        """The cells with blue pixels near their left edge: in this palette only a frame has."""
        left, top, right, bottom = plot(page)
        width, height = (right - left) / 4, (bottom - top) / 4
        edges = {
            at: pixels(page, HEAT_MAP, left + at[1] * width, top + (at[0] + 0.5) * height, 4, 8)
            for at in np.ndindex(4, 4)
        }
        return [at for at, edge in edges.items() if (edge[:, :, 2].astype(int) - edge[:, :, 0] > 60).any()]

    assert (2, 1) in (found := frames())
    assert set(found) <= {(2, 1), (2, 2)}  # its right edge is beside the next
    page.get_by_role("button", name=WORDS[0], exact=True).click()  # a row: no cell
    assert frames() == []


def test_a_dot_in_a_cell_is_explained(open_page):
    for last, is_there in ((3e-4, True), (0.3, False)):
        page = show(open_page, np.log([[1, last], [1, 1]]), ["it", "saw"], "Matrix")
        expect(page.get_by_text("· rounds to 0")).to_be_visible(visible=is_there)


def test_cells_of_sixteen_words_have_numbers_on_a_phone(open_page):
    """The room of the bars is theirs."""
    weights = np.eye(16) + 1e-6
    words = ["it", *(f"w{i}" for i in range(15))]
    page = show(open_page, np.log(weights), words, "Matrix", viewport={"width": 390, "height": 844}, closed=True)
    expect(page.get_by_text("· rounds to 0")).to_be_visible()


def test_one_weight_of_four_million_is_seen_and_can_be_zoomed_to(open_page):
    """And two thousand words are few elements."""
    scores = np.zeros((2048, 2048))
    scores[777, 1234] = 30
    page = show(open_page, scores, ["it", *(f"word{i}" for i in range(1, 2048))], "Matrix", "palette=greys")
    left, top, right, bottom = plot(page)
    width, height = right - left, bottom - top

    def dark() -> np.ndarray:
        """Row and column of each dark pixel within the plot's border."""
        drawn(page)
        return np.argwhere(pixels(page, HEAT_MAP, left + 1, top + 1, width - 2, height - 2)[:, :, 0] < 60)

    box = page.locator(HEAT_MAP).bounding_box()

    def place(row: float, column: float) -> tuple[float, float]:
        return box["x"] + left + 1 + column, box["y"] + top + 1 + row

    whole = dark()
    assert 1 <= len(whole) <= 121  # with a frame, as the headline has its number
    middle = whole.mean(0)
    assert 1 <= (np.abs(whole - middle).max(1) <= 2).sum() <= 9  # the weight, within the frame
    seen = (middle + 1.5) / [height, width]
    assert (np.abs(seen - np.array([777.5, 1234.5]) / 2048) < 2 / np.array([height, width])).all()
    page.mouse.move(*place(*middle + 0.5))
    for _ in range(20):
        page.mouse.wheel(0, -240)
    large = dark()
    assert len(large) > 2000
    row, column = np.median(large, 0)
    page.mouse.move(*place(row, column))
    expect(page.locator(".tip")).to_contain_text("“word777” → “word1234” 100\u00a0% (± 0.2)")
    page.mouse.down()
    page.mouse.move(*place(row, column - 150), steps=5)
    page.mouse.up()
    page.mouse.move(5, 5)
    assert abs(np.median(dark(), 0)[1] - (column - 150)) < 12
    assert "query=777" not in fragment(page)  # a drag is no click
    page.get_by_role("button", name="whole matrix").click()
    page.mouse.move(5, 5)
    np.testing.assert_array_equal(dark(), whole)
    assert_few_words(page)


def assert_few_words(page: Page) -> None:
    """The view Head has elements for the words in sight only."""
    page.get_by_role("tab", name="Head").click()
    words = page.locator(".word-lists [role=option]")
    expect(words.first).to_be_visible()
    assert words.count() < 120
    queries = page.locator(".queries")
    queries.locator("[role=option]").first.focus()
    page.keyboard.press("End")
    expect(queries.locator("[role=option]").last).to_have_text("word2047")
    queries.get_by_title("word2030", exact=True).hover()
    drawn(page)
    assert words.count() < 120


def test_fingers_hold_cells_zoom_and_scroll(open_page):
    phone = {"has_touch": True, "is_mobile": True, "viewport": {"width": 390, "height": 800}}
    page = show(open_page, SCORES, WORDS, "Matrix", "palette=greys", **phone)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator(HEAT_MAP).scroll_into_view_if_needed()
    page.touchscreen.tap(*centre(page, 1, 4))
    expect(page.locator(".selection")).to_contain_text("“saw” (1) looks at “ship” (4)")
    page.touchscreen.tap(*centre(page, 1, 4))
    expect(page.locator(".selection")).to_contain_text("Tap a token")
    session = page.context.new_cdp_session(page)

    def fingers(kind: str, *points: tuple[float, float]) -> None:
        touches = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

    box = page.locator(HEAT_MAP).bounding_box()
    before = cells(page, 8, 8)
    x, y = centre(page, 1, 4)
    fingers("touchStart", (x - 10, y), (x + 10, y))
    for step in range(1, 6):
        fingers("touchMove", (x - 10 - 8 * step, y), (x + 10 + 8 * step, y))
    fingers("touchEnd")
    drawn(page)
    after = cells(page, 8, 8)
    assert (before > 0.6).sum() == 7
    assert (after[:3, 3:6] > 0.5).all()  # the cell between the fingers is three times as large, and nothing was held
    expect(page.locator(".selection")).to_contain_text("Tap a token")
    assert page.evaluate("visualViewport.scale") == pytest.approx(1, abs=0.01)
    page.get_by_role("button", name="whole matrix").tap()
    drawn(page)
    start = page.evaluate("scrollY")
    fingers("touchStart", (box["x"] + 200, 500))
    for step in range(1, 9):
        fingers("touchMove", (box["x"] + 200, 500 + 30 * step))
    fingers("touchEnd")
    page.wait_for_function(f"() => scrollY < {start} - 50")
