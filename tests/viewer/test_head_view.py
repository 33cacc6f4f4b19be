"""Lines between words: which are drawn, and what a pointer, a click and a key change."""

import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.support.waiting import until
from tests.viewer.pages import EXAMPLE, SCORES, WORDS, drawn, fragment, pixels, show, take

CANVAS = ".lines canvas"
ROW = 24  # px of a word


def ends(page: Page) -> list[int]:
    """Indices of the keys at which a line ends."""
    drawn(page)
    width = page.eval_on_selector(CANVAS, "(canvas) => canvas.width - document.querySelector('.keys').offsetWidth")
    alpha = pixels(page, CANVAS, width - 3, 0, 1, ROW * len(WORDS))[:, 0, 3]
    return np.flatnonzero(alpha.reshape(-1, ROW).max(axis=1) > 60).tolist()


def test_lines_follow_the_pointer_the_focus_and_what_is_held(open_page):
    page = show(open_page, SCORES, WORDS, "Head")
    queries, keys = (page.locator(f".{side} [role=option]") for side in ("queries", "keys"))
    assert ends(page) == [0, 1, 3, 4, 5, 6, 7]
    queries.nth(1).hover()
    assert ends(page) == [4]
    page.mouse.move(5, 5)
    assert ends(page) == [0, 1, 3, 4, 5, 6, 7]
    by_tab = page.locator(".word-lists [tabindex='0']")
    expect(by_tab).to_have_count(1)
    by_tab.focus()
    expect(by_tab).to_have_accessible_name("it")
    expect(by_tab).to_have_accessible_description("looks at old 100 %, it < 0.1 %, saw < 0.1 %")
    assert ends(page) == [3]
    queries.nth(1).click()
    expect(page.locator(".selection li")).to_have_count(3)  # the others are "< 0.1 %", too
    page.mouse.move(5, 5)
    assert ends(page) == [4]
    page.keyboard.press("ArrowDown")
    assert ends(page) == [5]
    page.keyboard.press("Escape")
    keys.nth(2).click()
    expect(page.locator(".keys [aria-selected=true]")).to_have_count(1)
    keys.nth(2).click()
    expect(page.locator("[aria-selected=true][role=option]")).to_have_count(0)


def test_words_that_are_masked_have_no_numbers(open_page):
    """Their weights are 0, as those of words that a causal model does not see."""
    page = open_page("model=scaled_dot_product&sentence=true&view=head&query=2&parameters=%7B%22is_causal%22%3Atrue%7D")
    keys = page.locator(".keys small")
    expect(keys.nth(3)).to_have_text("masked")
    texts = keys.all_inner_texts()
    assert [text == "masked" for text in texts] == [place > 2 for place in range(len(texts))]
    places = page.locator(".selection li").evaluate_all("(list) => list.map((item) => Number(item.dataset.place))")
    assert sorted(places) == [0, 1, 2]
    assert take(page, "SVG").path().read_text().count(">masked<") == len(texts) - 3
    page.get_by_role("tab", name="Tokens").click()
    expect(page.locator(".chip").nth(3)).to_have_class(re.compile("masked"))
    expect(page.locator(".chip.masked")).to_have_count(len(texts) - 3)


@pytest.mark.parametrize("first", ["queries", "keys"])
def test_a_click_in_each_column_pins_a_pair(open_page, first):
    page = open_page("model=bert&view=head&head=0&text=the+cat+sat+on+a+mat")
    words = {"queries": "cat", "keys": "mat"}
    option = {name: page.locator(f".{name} [role=option]").get_by_text(word) for name, word in words.items()}
    for name in (first, *({*words} - {first})):
        option[name].click()
    expect(page.locator(".headline")).to_contain_text("“cat” → “mat”")
    option["keys"].click()
    expect(page.locator(".headline")).not_to_contain_text("“mat”: ")
    expect(page.get_by_role("group", name="words").get_by_role("button", name="cat")).to_have_attribute(
        "aria-pressed", "true"
    )


def test_each_head_has_its_colour(open_page):
    page = open_page("model=bert&view=head&text=the+cat+sat+on+the+mat&head=1")
    chips = page.get_by_role("group", name="heads").get_by_role("button")
    expect(chips.nth(1)).to_have_attribute("aria-pressed", "true")

    def colours() -> set[tuple[int, ...]]:
        side = page.eval_on_selector(".queries", "(list) => list.offsetWidth")
        rgba = pixels(page, CANVAS, side, 0, 300, 100).reshape(-1, 4)
        return {tuple(colour // 24) for colour in rgba[rgba[:, 3] > 100][:, :3]}

    one = colours()
    expect(page.locator(".head-chips [tabindex='0']")).to_have_count(1)
    chips.nth(1).press("ArrowLeft")
    expect(chips.nth(0)).to_be_focused()
    chips.nth(0).click()
    expect(chips.nth(0)).to_have_attribute("aria-pressed", "true")
    assert "heads=%5B0%2C1%5D" in fragment(page)
    note = page.locator(".view .note")
    expect(note).to_contain_text("2 heads")
    expect(note).to_be_hidden()  # as long as there are no numbers
    page.locator(".queries [role=option]").nth(2).click()
    expect(note).to_be_visible()
    expect(page.locator(".selection")).to_contain_text("“cat” (2) in the mean of 2 heads looks at")
    expect(page.locator(".headline")).to_contain_text("largest in mean of 2 heads (ignoring")
    beside = page.locator(".keys [role=option]").evaluate_all(
        "(keys) => keys.map((key) => key.innerText.split('\\n')).filter(([word]) => !'<s> cat </s>'.includes(word))"
    )
    most = max(beside, key=lambda word: float(word[1].split()[0]))
    expect(page.locator(".headline b")).to_have_text(most[1])
    expect(page.get_by_role("combobox", name="head")).to_have_value("")
    expect(page.get_by_role("combobox", name="show")).to_contain_text("2 heads")
    back = page.eval_on_selector("body", "(body) => getComputedStyle(body).backgroundColor")
    expect(page.locator(".keys small").first).to_have_css("background-color", back)
    page.locator(".queries [role=option]").nth(2).click()
    page.mouse.move(5, 5)
    both = colours()
    chips.nth(1).click()
    expect(chips.nth(1)).to_have_attribute("aria-pressed", "false")
    assert "heads=" not in fragment(page)
    assert "head=0" in fragment(page)
    other = colours()
    assert one != other
    assert len(both) > max(len(one), len(other)) > 0 < min(len(one), len(other))


def test_each_query_has_its_strongest_lines_at_first(open_page):
    scores = np.zeros((8, 8))
    scores[:, :5] = np.log([9, 8, 7, 6, 5])  # of each query; the last three keys have equal weights
    page = show(open_page, scores, WORDS, "Head")
    assert ends(page) == [0, 1, 2]
    drawing = take(page, "SVG").path().read_text()
    assert drawing.count("<path") == 8 * 3
    assert "The 3 strongest lines of each query." in drawing
    page.get_by_role("combobox", name="lines").select_option("all")
    until(lambda: len(ends(page)) > 3)
    assert take(page, "SVG").path().read_text().count("<path") == 8 * 8
    page.get_by_role("combobox", name="lines").select_option("the 3 strongest of each query")
    page.locator(".queries [role=option]").nth(1).hover()
    assert len(ends(page)) > 3  # those of one word are all drawn


def test_lines_of_a_pair_are_told_apart(open_page):
    page = open_page("model=bert&view=head&text=the+cat+sat&pair=on+the+mat&scale=log")
    page.get_by_role("combobox", name="between").select_option("first to second")

    def weights(query: int) -> list[str]:
        page.locator(".queries [role=option]").nth(query).hover()
        drawn(page)
        return page.locator(".keys small").all_inner_texts()

    words = page.locator(".keys [role=option] span").all_inner_texts()
    separator = words.index("</s>")
    assert list(map(bool, weights(1)))[:-1] == [place > separator for place in range(len(words) - 1)]
    assert not any(weights(separator + 1))


def lab(colours: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear red, green and blue, each from 0 to 1 (illuminant D65)."""
    xyz = colours @ np.array([[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]])
    share = xyz / np.array([0.9505, 1, 1.0888])
    x, y, z = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


SEEN_BY = {  # Machado, Oliveira and Fernandes, 2009: severity 1, of linear red, green and blue
    "everyone": np.eye(3),
    "deuteranopes": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopes": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
}


def test_all_heads_have_colours_that_differ(open_page):
    page = open_page(EXAMPLE)
    for heads in (12, 16):
        colours = page.evaluate(
            "(heads) => import('heed/data/palettes.js').then(({ headColour }) => "
            "Array.from({ length: heads }, (_, head) => headColour(head, heads)))",
            heads,
        )
        shares = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours]) / 255
        linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
        for people, matrix in SEEN_BY.items():
            seen = lab(np.clip(linear @ np.array(matrix).T, 0, 1))
            distances = np.linalg.norm(seen[:, None] - seen[None], axis=-1)[np.triu_indices(heads, 1)]
            assert distances.min() > 2.3, people  # a difference that is just noticed
