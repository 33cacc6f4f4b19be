"""Which head looks most from one word to another."""

import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.support.waiting import until
from tests.viewer.pages import fragment, percent, violations

TEXT = "the cat sat on the mat"
LEFT_OUT = "(ignoring special tokens, punctuation and the word itself)"
OF_HEADS = "(ignoring special tokens, punctuation and itself; neighbours last)"


@pytest.fixture(scope="module")
def weights(heed) -> np.ndarray:
    """[heads, m, n] of the only layer."""
    return heed.attend("bert", text=TEXT).weights[0]


def named(place: int) -> str:
    """A token of the text as the page names it: a repeated word with its place."""
    words = ["<s>", *TEXT.split(), "</s>"]
    return f"“{words[place]}”" + (f" ({place})" if words.count(words[place]) > 1 else "")


def listed(page: Page) -> list[str]:
    return page.locator(".ranking button").all_inner_texts()


def test_the_largest_weight_of_all_heads_is_named_first(open_page, weights):
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}")
    words = weights[:, 1:-1, 1:-1].copy()  # without special tokens
    words[:, np.arange(words.shape[1]), np.arange(words.shape[1])] = 0
    head, row, column = np.unravel_index(words.argmax(), words.shape)
    said = f"{named(row + 1)} → {named(column + 1)}: "
    expect(page.locator(".headline")).to_contain_text(f"{said}{percent(words.max())} largest in head {head} {OF_HEADS}")
    first = page.locator(".ranking button").first
    expect(first).to_have_text(f"head {head} {percent(words.max())} {said.removesuffix(': ')}")
    expect(page.get_by_role("region", name="large head").get_by_role("heading")).to_have_text(
        f"head {head}: {said.removesuffix(': ')} {percent(words.max())}"
    )


def test_two_clicks_rank_all_heads_by_a_pair(open_page, weights):
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}")
    words = page.get_by_role("group", name="words")
    words.get_by_role("button", name="cat").click()
    largest = np.delete(weights[:, 2, :], [0, 2, weights.shape[-1] - 1], axis=1).max(1)
    where = f"largest in head {largest.argmax()} {OF_HEADS}"
    headline = page.locator(".headline")
    expect(headline).to_contain_text(where)
    expect(headline).to_have_text(re.compile(f"^“cat” → “.+”: {percent(largest.max())} largest"))
    expect(page.locator(".ranking button").first).to_contain_text(f"head {largest.argmax()}")
    words.get_by_role("button", name="mat").click()
    pair = weights[:, 2, 6]
    best = int(pair.argmax())
    expect(page.locator(".headline")).to_contain_text("“cat” → “mat”")
    expect(page.locator(".ranking button")).to_have_count(len(pair))
    for head, text in zip(np.argsort(-pair), listed(page), strict=True):
        assert f"head {head} " in text
    expect(page.locator(".thumbnail .outline")).to_have_count(len(pair))
    assert not violations(page)
    page.locator(".ranking button").first.hover()
    large = page.get_by_role("region", name="large head").get_by_role("heading")
    expect(large).to_have_text(f"head {best}: “cat” → “mat” {percent(pair[best])}")
    page.locator(".ranking button").first.click()
    expect(page.get_by_role("tab", name="Head")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".headline")).to_contain_text(f"head {best}")
    page.reload()
    expect(page.locator(".headline b")).to_contain_text(f"{100 * pair[best]:.0f}")
    expect(words.get_by_role("button", name="mat")).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("held", ["", "&query=2", "&query=2&key=6"])
def test_a_link_without_a_head_opens_the_first_of_the_ranking(open_page, held):
    """It stays when the text changes; a link with a layer or a head keeps it."""
    link = f"model=bert&text={TEXT.replace(' ', '+')}&view=head{held}"
    page = open_page(link)
    first = page.locator(".ranking button").first
    expect(first).to_have_attribute("aria-current", "true")
    place = re.match(r"head (\d)", first.inner_text())[1]
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value(place)
    until(lambda: f"head={place}" in fragment(page), 20)
    page.get_by_role("textbox", name="text").fill("a dog ran")
    expect(page.get_by_role("group", name="words").get_by_role("button", name="ran")).to_be_visible()
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value(place)
    other = str((int(place) + 1) % 4)
    page = open_page(f"{link}&head={other}")
    expect(page.locator(".ranking button").first).to_be_visible()
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value(other)


def test_a_comparison_without_heads_opens_the_first_two_of_the_ranking(open_page):
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}&view=matrix")
    expect(page.locator(".ranking button")).to_have_count(4)
    heads = [re.match(r"head \d", text)[0].replace(" ", "\u00a0") for text in listed(page)[:2]]
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}&view=compare")
    expect(page.locator(".sides h2").nth(0)).to_have_text(f"First: {heads[0]}")
    expect(page.locator(".sides h2").nth(1)).to_have_text(f"Second: {heads[1]}")


def test_heads_that_look_at_a_neighbour_come_last(open_page):
    """Punctuation between two words counts as nothing; a pinned pair has no order of its own."""
    words = ["one", "two", ",", "three", "four"]
    largest = [(0, 3, 5.0), (3, 1, 6.0), (4, 3, 9.0), (0, 1, 8.0)]  # query, key, score: of heads 0 to 3
    scores = np.zeros((1, 4, 5, 5))
    for head, (query, key, score) in enumerate(largest):
        scores[0, head, query, key] = score * np.sqrt(5)  # which the block divides by
    keys = np.broadcast_to(np.eye(5), scores.shape).tolist()
    tensors = {"words": words, "query": scores.tolist(), "key": keys, "value": keys}
    page = open_page("model=scaled_dot_product&sentence=true&view=model", tensors=tensors)
    buttons = page.locator(".ranking button")
    expect(buttons).to_have_text([re.compile(f"^head {head} .*→") for head in (0, 2, 3, 1)])
    expect(page.locator(".headline")).to_contain_text(f"largest in head 0 {OF_HEADS}")
    page.get_by_role("group", name="words").get_by_role("button", name="one").click()
    expect(buttons.first).to_have_text(re.compile("^head 0 .* to “three”"))
    page.get_by_role("group", name="words").get_by_role("button", name="two").click()
    expect(buttons.first).to_have_text(re.compile("^head 3 "))


@pytest.mark.parametrize("view", ["model", "head", "matrix", "tokens", "ablate"])
def test_a_repeated_word_has_its_place(open_page, weights, view):
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}&view={view}&query=5")
    others = [place for place in range(1, 7) if place != 5]
    to = named(others[int(weights[0, 5][others].argmax())])
    said = {"tokens": f"“the” (5) looks most at {to}: ", "ablate": f"head 0: “the” (5) → {to} "}
    expect(page.get_by_role("tabpanel" if view in said else "main")).to_contain_text(said.get(view, "“the” (5) → "))
    if view == "ablate":
        return
    largest = weights[:, 5][:, others]
    best = largest.max(1).argmax()
    expect(page.locator(".ranking button").first).to_have_text(
        re.compile(f" to {re.escape(named(others[largest[best].argmax()]))}$")
    )


def test_without_a_word_the_largest_weight_of_the_head_is_named_and_a_pin_moves_no_map(open_page, weights):
    fragment = f"model=bert&view=matrix&head=1&text={TEXT.replace(' ', '+')}"
    page = open_page(fragment, closed=True, viewport={"width": 1440, "height": 900})
    words = weights[1, 1:-1, 1:-1].copy()  # without the special tokens
    np.fill_diagonal(words, 0)
    row, column = np.unravel_index(words.argmax(), words.shape)
    headline = page.locator(".headline")
    expect(headline).to_contain_text(f"{named(row + 1)} → {named(column + 1)}: {100 * words.max():.0f}\u00a0%")
    expect(headline).to_contain_text(f"largest in head 1 {LEFT_OUT}")
    place = page.get_by_role("application").bounding_box()["y"]
    page.get_by_role("group", name="words").get_by_role("button", name="cat").click()
    expect(page.locator(".ranking button")).to_have_count(len(weights))
    assert page.get_by_role("application").bounding_box()["y"] == pytest.approx(place, abs=2)


def test_the_words_of_the_headline_are_marked_between_the_lines(open_page, weights):
    page = open_page(f"model=bert&view=head&head=1&text={TEXT.replace(' ', '+')}")
    words = weights[1, 1:-1, 1:-1].copy()  # without the special tokens
    np.fill_diagonal(words, 0)
    row, column = np.unravel_index(words.argmax(), words.shape)
    marked = page.locator(".word-lists .named")
    expect(marked).to_have_count(2)
    places = marked.evaluate_all("(words) => words.map(({ dataset }) => [dataset.side, Number(dataset.index)])")
    assert places == [["query", row + 1], ["key", column + 1]]
    page.locator(".word-lists [data-side=query]").nth(1).click()
    expect(marked).to_have_count(0)
    page.get_by_role("group", name="words").get_by_role("button", name="mat").click()
    expect(marked).to_have_text([re.compile("^the"), re.compile("^mat")])


def test_other_views_open_the_head_that_model_shows_large(open_page):
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}&view=model&head=3")
    large, choice = page.locator(".thumbnail.large"), page.get_by_role("combobox", name="head", exact=True)
    best = re.search("^head ([0-9])", page.locator(".ranking button").first.inner_text())[1]
    expect(large).to_have_attribute("data-head", f"0.{best}")
    current, chip = (page.locator(f"{name}[aria-current=true]") for name in (".thumbnail", ".ranking button"))
    for head in (best, "3", "0"):
        page.locator(f".thumbnail[data-head='0.{head}']").hover()
        expect(large).to_have_attribute("data-head", f"0.{head}")
        expect(current).to_have_attribute("data-head", f"0.{head}")  # the only frame
        expect(chip).to_have_text(re.compile(f"^head {head} "))
    page.locator(f".thumbnail[data-head='0.{best}']").hover()
    page.get_by_role("tab", name="Matrix").click()
    expect(choice).to_have_value(best)
    other = str((int(best) + 1) % 4)
    choice.select_option(other)
    page.get_by_role("tab", name="Model").click()
    expect(large).to_have_attribute("data-head", f"0.{other}")
    page.get_by_role("tab", name="Head").click()
    expect(choice).to_have_value(other)


def test_words_of_a_long_text_are_ranked_by_rows_of_the_server(open_page, heed):
    generator = np.random.default_rng(3)
    query, key = generator.normal(size=(2, 1, 4, 100, 8)).astype(np.float32)
    words = ["it", *(f"word{i}" for i in range(1, 100))]
    fields = {"query": query, "key": key, "value": key}
    weights = heed.attend("scaled_dot_product", **fields, outputs=["weights"]).weights[0]
    tensors = {"words": words, **{name: values.tolist() for name, values in fields.items()}}
    page = open_page("model=scaled_dot_product&sentence=true&view=matrix&query=70&key=31", tensors=tensors)
    best = int(weights[:, 70, 31].argmax())
    expect(page.locator(".ranking button").first).to_contain_text(f"head {best} ")
    page.locator(".ranking button").first.click()
    value = 100 * weights[best, 70, 31]
    expect(page.locator(".headline b")).to_have_text(f"{value:.{1 if value < 9.95 else 0}f} %")


def test_what_is_pinned_follows_its_word(open_page):
    page = open_page("model=bert&view=matrix&text=the+cat+sat&query=2&key=3")
    box = page.get_by_role("textbox", name="text", exact=True)
    words = page.locator(".pair-words [aria-pressed=true]")
    expect(words).to_have_text(["cat", "sat"])
    box.fill("on the mat the cat sat")
    expect(words).to_have_text(["cat", "sat"])
    expect(page).to_have_url(re.compile("query=5&key=6"))
    box.fill("the dog sat")
    expect(words).to_have_text(["sat"])
    expect(page).not_to_have_url(re.compile("query="))
    box.fill("on the mat")
    expect(words).to_have_count(0)
    expect(page).not_to_have_url(re.compile("query=|key="))
    page = open_page("model=bert&view=matrix&text=the+cat&query=10&key=2")
    expect(page.locator(".pair-words [aria-pressed=true]")).to_have_text(["cat"])
    expect(page).not_to_have_url(re.compile("query="))
