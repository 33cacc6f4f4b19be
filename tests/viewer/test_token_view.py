"""The text in colours: the colour of each token is its weight's."""

import io
import re

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.support.waiting import until
from tests.viewer.pages import SCORES, WORDS, display, drawn, fragment, percent, pixels, show, softmax, violations

MARK = (29, 78, 137)  # red, green and blue of a ring
WATCH_CHANGES = """() => {
  window.changed = new Set();
  const watch = (records) => records.forEach(({ target }) => window.changed.add(target.textContent));
  new MutationObserver(watch).observe(document.querySelector(".token-text"),
    { attributes: true, childList: true, subtree: true });
}"""


@pytest.fixture
def page(open_page) -> Page:
    return show(open_page, SCORES, WORDS, "Tokens", "palette=greys")


def darkness(page: Page) -> list[float]:
    """How dark each token is, from 0 to 1, as the browser painted it: a pixel in the corner of each chip."""
    drawn(page)
    grey = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"))
    boxes = "(chips) => chips.map((chip) => chip.getBoundingClientRect()).map(({ left, top }) => [left + 4, top + 4])"
    places = np.array(page.eval_on_selector_all(".chip", boxes), int)
    return [1 - grey[y, x] / 255 if 0 <= y < len(grey) else 0 for x, y in places]


def test_the_colours_are_the_weights_of_the_token_under_the_pointer(page):
    """Only tokens whose text needs the other colour change. Without a pointer the colours are means over all tokens."""
    means = softmax(SCORES).mean(0)  # "an" is looked at by "." alone
    assert [*means.round(3)] == [0.141, 0.141, 0.016, *[0.141] * 5]
    dark = darkness(page)
    assert dark.pop(2) == pytest.approx(0.055, abs=0.01)  # the palette's colour of 1/9
    assert dark == [1] * 7
    page.get_by_role("button", name="old").hover()
    assert np.argmax(darkness(page)) == 6
    page.evaluate(WATCH_CHANGES)
    chip = page.get_by_role("button", name="saw")
    chip.hover()
    assert np.argmax(darkness(page)) == 4
    assert darkness(page)[4] == 1
    assert set(page.evaluate("[...window.changed]")) == {"ship", "sea"}
    expect(page.get_by_role("button", name="ship")).to_have_css("color", "rgb(255, 255, 255)")
    expect(page.get_by_role("button", name="old")).to_have_css("color", "rgb(0, 0, 0)")
    box = chip.bounding_box()
    page.mouse.move(box["x"] + box["width"] + 1.5, box["y"] + 8)  # between tokens
    assert np.argmax(darkness(page)) == 4
    page.get_by_role("button", name="an", exact=True).hover()
    assert np.argmax(darkness(page)) == 5
    page.get_by_role("combobox", name="a token").select_option("is looked at by")
    page.get_by_role("button", name="old").hover()
    dark = darkness(page)
    assert dark[0] == 1
    assert 0.05 < dark[7] < 0.3  # "." looks at all words alike
    page.mouse.move(5, 5)
    assert darkness(page)[2] < 0.1
    highest = page.locator(".tokens > .tools .legend:visible small").last
    expect(highest).to_have_text(percent(means.max()))


def test_colours_follow_chips_that_are_scrolled(open_page):
    scores = np.zeros((600, 600))
    scores[0, 599] = 30
    page = show(open_page, scores, ["it", *(f"word{i}" for i in range(1, 600))], "Tokens", "palette=greys")
    page.get_by_role("button", name="it", exact=True).click()
    page.get_by_role("button", name="word599").scroll_into_view_if_needed()
    page.mouse.move(5, 5)
    assert darkness(page)[599] == 1
    page.set_viewport_size({"width": 1000, "height": 900})
    page.get_by_role("button", name="word599").scroll_into_view_if_needed()
    assert darkness(page)[599] == 1


def test_a_click_holds_and_keys_move_what_is_held(page):
    page.get_by_role("button", name="saw").click()
    page.get_by_role("button", name="ship").hover()
    expect(page.get_by_role("tabpanel")).to_contain_text("“saw” looks at “ship”: 100 %")
    assert np.argmax(darkness(page)) == 4
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("button", name="an", exact=True)).to_be_focused()
    expect(page.locator(".selection")).to_contain_text("“an” (2) looks at “at” (5)")
    page.get_by_role("combobox", name="a token").select_option("is looked at by")
    expect(page.locator(".selection")).to_contain_text("“an” (2) is looked at by")
    assert "key=2" in fragment(page)
    page.get_by_role("button", name="an", exact=True).press("Escape")
    expect(page.locator(".selection")).to_have_text("")
    assert "key=" not in fragment(page)


def test_the_pinned_token_is_shown_in_every_head(open_page, heed):
    weights = heed.attend("bert", text="the cat sat on the mat").weights[0].astype(float)
    page = open_page("model=bert&view=tokens&text=the+cat+sat+on+the+mat&query=2&head=1")
    expect(page.locator(".chip[tabindex='0']")).to_have_text("cat")
    heads = page.get_by_role("region", name="every head")
    map_ = heads.get_by_role("application")
    expect(heads.get_by_role("heading")).to_have_text("What “cat” looks at in every head")
    largest = page.locator(".tokens > .tools .legend:visible small").last
    of_heads = heads.locator(".legend small").last
    expect(largest).to_have_text(percent(weights[1].max()))
    expect(of_heads).to_have_text(percent(weights[:, 2].max()))
    ranked = page.get_by_role("region", name="heads by weight").get_by_role("heading")
    left_out = "(ignoring special tokens, punctuation and itself; neighbours last)"
    expect(ranked).to_have_text(f"Heads ranked by their largest weight from “cat” {left_out}")
    map_.press("ArrowDown")  # the next head
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value("2")
    expect(ranked).to_have_text("Heads ranked by “cat” → “<s>”")
    expect(page.locator(".readout")).to_have_text(f"“cat” looks at “<s>”: {percent(weights[2, 2, 0])} ")
    expect(heads.locator(".tip")).to_be_hidden()  # cells have their numbers
    map_.hover()
    expect(heads.locator(".tip")).to_have_text(re.compile(r"^head \d: “cat” → “.+” \d+(\.\d)?\s%$"))
    assert "key=0" in fragment(page)
    page.get_by_role("combobox", name="a token").select_option("is looked at by")
    expect(heads.get_by_role("heading")).to_have_text("What looks at “cat” in every head")
    expect(largest).to_have_text(percent(weights[2].max()))
    expect(of_heads).to_have_text(percent(weights[:, :, 2].max()))
    page.get_by_role("button", name="clear").click()
    expect(heads.get_by_role("heading")).to_have_text("How much attention each token gets, on average, in every head")
    expect(largest).to_have_text(percent(weights[2].mean(0).max()))
    expect(of_heads).to_have_text(percent(weights.mean(1).max()))
    assert violations(page) == []


def test_both_words_of_a_pinned_pair_have_a_ring(open_page):
    def rings(pinned: str) -> int:
        """The pixels of rings around chips."""
        page = open_page(f"model=bert&text=the old ship saw an old sea&view=tokens&{pinned}")
        expect(page.locator(".readout b")).to_contain_text("%")
        ring = pixels(page, ".chip-colours canvas")[:, :, :3] == MARK
        return int(ring.all(axis=-1).sum())

    assert rings("query=3&key=5") > 1.5 * rings("query=3") > 100


def test_a_token_and_its_column_are_marked_together(open_page):
    """A token that is pointed at above the heads, and a column that is pointed at among them; a click moves neither."""
    page = open_page("model=bert&text=the old ship saw an old sea&view=tokens", viewport={"width": 1440, "height": 900})
    chips, heads = page.locator(".chip"), page.locator(".every-head .heat-map > canvas").first
    marks = lambda: int(np.count_nonzero(pixels(page, ".every-head .pointer")[:, :, 3]))  # noqa: E731
    until(lambda: marks() == 0, 10)
    before = heads.bounding_box()
    assert before["height"] > 0
    chips.nth(3).hover()
    until(lambda: marks() > 0, 10)
    chips.nth(3).click()
    ranking = page.get_by_role("list", name="heads by weight")
    expect(ranking.get_by_role("button").first).to_be_visible()
    assert heads.bounding_box() == before
    page.mouse.move(5, 5)
    until(lambda: marks() == 0, 10)
    box, readout = heads.bounding_box(), page.locator(".readout")
    heads.hover(position={"x": box["width"] / 2, "y": box["height"] / 2})
    tip = page.locator(".every-head .tip")
    expect(tip).to_contain_text("→")
    word = re.search("→ “(.*)” ", tip.inner_text())[1]
    expect(readout).to_contain_text(f"“{chips.nth(3).inner_text()}” looks at “{word}”")


def test_a_finger_is_told_to_tap(open_page):
    options = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    page = open_page("model=bert&text=the old ship saw an old sea&view=tokens", **options)
    expect(page.locator(".readout small")).to_contain_text("Tap a token to pin it.")
    ends = "(one) => one.getBoundingClientRect().bottom"
    hint, readout = (page.locator(name).evaluate(ends) for name in (".readout small", ".readout"))
    assert hint <= readout + 1
    page.get_by_role("tab", name="Matrix").click()
    expect(page.locator(".selection")).to_have_text("Tap a token or a cell to pin it.")


def test_all_tools_are_in_one_row_of_a_wide_window(open_page):
    page = open_page("model=bert&view=tokens&text=the+cat+sat")
    rows = page.locator(".workspace > .tools, .tokens > .tools")
    expect(rows).to_have_count(2)
    for width, is_one in ((1440, True), (600, False)):
        page.set_viewport_size({"width": width, "height": 900})
        one, other = (row.bounding_box() for row in rows.all())
        assert (one["y"] == other["y"]) is is_one
    assert other["y"] >= one["y"] + one["height"]


def test_each_head_has_its_row_below_a_long_text(open_page):
    page = open_page('model=multi_head&view=tokens&query=1&random={"seed":1,"sizes":{"batch":1,"m":100,"n":100}}')
    heads = page.get_by_role("region", name="every head").get_by_role("application")
    expect(heads).to_be_visible()
    until(lambda: heads.bounding_box()["height"] > 8 * 24 + 40)


def test_a_long_text_has_the_mean_of_every_head_from_the_server(open_page, heed):
    """Before a token is pinned."""
    query, key = np.random.default_rng(3).normal(size=(2, 1, 4, 100, 8)).astype(np.float32)
    fields = {"query": query, "key": key, "value": key}
    received = heed.attend("scaled_dot_product", **fields, outputs=["received"])["received"][0]
    tensors = {"words": [f"word{i}" for i in range(100)], **{name: each.tolist() for name, each in fields.items()}}
    page = open_page("model=scaled_dot_product&sentence=true&view=tokens", tensors=tensors)
    heads = page.get_by_role("region", name="every head")
    expect(heads.get_by_role("heading")).to_have_text("How much attention each token gets, on average, in every head")
    heads.get_by_role("application").hover()
    tip = heads.locator(".tip")
    expect(tip).to_have_text(re.compile(r"^head \d: all tokens → “word\d+” [\d.]+\s% on average$"))
    head, word = map(int, re.match(r"head (\d): all tokens → “word(\d+)”", tip.inner_text()).groups())
    expect(tip).to_contain_text(f" {percent(received[head, word])} on average")


def test_two_texts_of_cross_attention(open_page):
    scores = np.zeros((3, 8))
    scores[1, 6] = 30
    page = show(open_page, scores, WORDS, "Tokens")
    keys = page.get_by_role("group", name="keys")
    expect(keys.get_by_role("button")).to_have_count(8)
    page.get_by_role("group", name="queries").get_by_role("button").nth(1).click()
    expect(page.locator(".selection")).to_contain_text("“sea” (6) 100 %")
    assert np.argmax(darkness(page)[3:]) == 6
    keys.get_by_role("button", name="sea").click()
    expect(page.locator(".selection")).to_contain_text("“sea” (6) is looked at by")


def test_special_tokens_are_marked(open_page):
    page = open_page("model=bert&view=tokens&text=the+cat+sat")
    expect(page.locator(".chip.special")).to_have_text(["<s>", "</s>"])
    display(page).get_by_role("checkbox", name="hide special tokens").check()
    expect(page.locator(".chip.special")).to_have_count(0)


def test_an_unknown_word_is_shown_with_what_stands_in_the_text(open_page):
    page = open_page("model=bert&view=tokens&text=the+%F0%9F%98%80+zebra")
    expect(page.locator(".chip")).to_have_text(["<s>", "the", "<unk> 😀", "<unk> zebra", "</s>"])


def test_byte_level_tokens_are_their_characters(open_page):
    page = open_page("model=bert&text=the+cat")
    alphabet = {byte: chr(byte) for byte in [*range(33, 127), *range(161, 173), *range(174, 256)]}
    others = iter(range(256, 324))
    alphabet |= {byte: chr(next(others)) for byte in range(256) if byte not in alphabet}
    encode = lambda data: "".join(alphabet[byte] for byte in data)  # noqa: E731
    smile = "😀".encode()
    tokens = ["a", encode(b" docker"), encode("你好".encode()), encode(smile[:2]), encode(smile[2:]), "</s>"]
    words = page.evaluate("async (tokens) => (await import('heed/data/tokens.js')).wordsOf(tokens)", tokens)
    assert words == ["a", "docker", "你好", "😀 1/2", "😀 2/2", "</s>"]
    tokens = ["a", encode(b"\n"), encode("\x85".encode()), encode(b"b\x06")]
    words = page.evaluate("async (tokens) => (await import('heed/data/tokens.js')).wordsOf(tokens)", tokens)
    assert words == ["a", "⏎", "U+0085", "bU+0006"]  # fonts do not have these characters
    plain = page.evaluate(
        "async (tokens) => (await import('heed/data/tokens.js')).wordsOf(tokens)",
        ["▁café", "naïve", "Ø", "\u0378", "\u200b", "👩\u200d🚀"],
    )
    assert plain == ["café", "naïve", "Ø", "U+0378", "U+200B", "👩\u200d🚀"]


def test_heads_are_ranked_by_what_the_pinned_token_looks_at(open_page, heed):
    """Without the token itself and special ones; a click opens the head in this view."""
    answer = heed.attend("bert", text="the cat sat on the mat", outputs=["weights"])
    others = [place for place in range(1, len(answer.tokens) - 1) if place != 3]
    largest = answer.weights[:, :, 3][:, :, others].max(-1)
    page = open_page("model=bert&text=the+cat+sat+on+the+mat&view=tokens&query=3")
    ranked = page.get_by_role("region", name="heads by weight").get_by_role("button")
    heads = [f"head {head} " for head in np.argsort(-largest[0])]
    expect(ranked).to_have_text([re.compile(f"^{head}") for head in heads])
    ranked.nth(1).click()
    expect(ranked.nth(1)).to_have_attribute("aria-current", "true")
    expect(page.get_by_role("tab", name="Tokens")).to_have_attribute("aria-selected", "true")
    page.get_by_role("button", name="clear").click()
    expect(ranked.first).to_have_text(re.compile(r"^head .* “.+” → “the” \(1\)$"))  # of all pairs
