"""The view Neurons: a query's vector, the keys' vectors, their products, sums and weights, as the server has them."""

import json
import re
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.viewer.pages import fragment, number, percent, softmax, take

TEXT = "the cat sat on the mat"
LAYER, HEAD, QUERY = 0, 2, 3
ERROR = 1e-5


def numbers(page, column):
    cells = page.locator(f".neurons tbody td:nth-child({column}) data")
    return np.array([float(cell.get_attribute("value")) for cell in cells.all()])


def test_the_sums_of_the_products_are_the_scores_of_the_weights(open_page, heed):
    answer = heed.attend("bert", text=TEXT, outputs=["weights", "query", "key"])
    query, keys = answer["query"][LAYER, HEAD, QUERY], answer["key"][LAYER, HEAD]
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}&view=neurons&layer={LAYER}&head={HEAD}&query={QUERY}")
    expect(page.locator(".neurons tbody tr")).to_have_count(len(keys))
    np.testing.assert_allclose(numbers(page, 4), keys @ query, atol=ERROR)
    np.testing.assert_allclose(numbers(page, 5), answer.weights[LAYER, HEAD, QUERY], atol=ERROR)
    np.testing.assert_allclose(numbers(page, 5), softmax(numbers(page, 4)), atol=ERROR)
    products = keys[answer.weights[LAYER, HEAD, QUERY].argmax()] * query
    said = page.locator(".headline small").inner_text()
    assert int(said.split()[-1]) == (most := int(abs(products).argmax()))
    assert number(said.split()[2].rstrip(",")) == pytest.approx(products[most], rel=1e-3)


@pytest.mark.parametrize("model", ["encoder", "multi_head", "scaled_dot_product"])
def test_the_vectors_of_a_block_are_scaled_here(open_page, model):
    page = open_page(f"model={model}&view=neurons&layer=1&head=1&query=1")
    expect(page.locator(".neurons tbody tr").first).to_be_visible()
    np.testing.assert_allclose(numbers(page, 5), softmax(numbers(page, 4)), atol=ERROR)


def test_another_query_is_chosen_and_a_key_is_pinned(open_page):
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}&view=neurons&query={QUERY}")
    expect(page.locator(".neurons thead")).to_contain_text("query 3 sat")
    words = page.get_by_role("group", name="query", exact=True).get_by_role("button")
    expect(words.nth(QUERY)).to_have_attribute("aria-pressed", "true")
    words.nth(QUERY).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator(".neurons thead")).to_contain_text("query 4 on")
    words.filter(has_text="cat").click()
    expect(page.locator(".neurons thead")).to_contain_text("query 2 cat")
    expect(words.nth(2)).to_have_attribute("aria-pressed", "true")
    headline = page.locator(".headline")
    expect(headline).to_have_text(re.compile("^Score of “cat” and “.+”: "))
    page.locator(".neurons tbody tr").nth(4).locator("data").first.hover()
    expect(headline).to_contain_text("Score of “cat” and “on”: ")
    page.mouse.move(5, 5)
    page.get_by_role("button", name="6 mat").click()
    shares = numbers(page, 5)
    expect(headline).to_contain_text("Score of “cat” and “mat”: ")
    expect(headline.locator("b").last).to_have_text(percent(shares[6]))
    expect(page.get_by_role("button", name="6 mat")).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile("query=2"))
    expect(page).to_have_url(re.compile("key=6"))


def test_keys_are_ordered_by_weight(open_page, heed):
    weights = heed.attend("bert", text=TEXT, outputs=["weights"]).weights[LAYER, HEAD, QUERY]
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}&view=neurons&layer={LAYER}&head={HEAD}&query={QUERY}")
    expect(page.locator(".neurons tbody tr")).to_have_count(len(weights))
    header = page.get_by_role("columnheader", name="weight")
    for order, shown in (("descending", np.sort(weights)[::-1]), ("none", weights)):
        header.get_by_role("button").click()
        expect(header).to_have_attribute("aria-sort", order)
        np.testing.assert_allclose(numbers(page, 5), shown, atol=ERROR)
        assert ("byWeight=true" in fragment(page)) == (order == "descending")
    for width in (390, 1440, 2560):
        page.set_viewport_size({"width": width, "height": 900})
        row = page.locator(".neurons tbody tr").first
        first, second = (box.bounding_box()["width"] for box in row.locator(".strip").all())
        assert first == pytest.approx(second, abs=1)


def test_the_vectors_of_a_narrow_window_are_below_their_word(open_page):
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}&view=neurons&query={QUERY}")
    page.set_viewport_size({"width": 390, "height": 844})
    row = page.locator(".neurons tbody tr").nth(1)
    expect(row.locator(".strip")).to_have_count(2)
    key, product, query = *row.locator(".strip").all(), page.locator(".neurons thead .strip")
    word = row.get_by_role("button").bounding_box()
    boxes = [strip.bounding_box() for strip in (query, key, product)]
    assert {box["x"] for box in boxes} == {boxes[0]["x"]}  # a number is below that of the query
    assert all(box["width"] > 300 for box in boxes)
    assert word["y"] + word["height"] <= boxes[1]["y"] + 1 < boxes[2]["y"]
    score = row.locator("data").first.bounding_box()
    assert score["y"] < word["y"] + word["height"] <= boxes[1]["y"] + 1
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_query_and_the_titles_stay_while_a_long_text_scrolls(open_page):
    page = open_page(f"model=bert&text={'+'.join([TEXT.replace(' ', '+')] * 8)}&view=neurons&query={QUERY}")
    last = page.locator(".neurons tbody tr").last
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 844})
        last.scroll_into_view_if_needed()
        for kept in (page.get_by_role("img", name="query vector q"), page.get_by_role("columnheader", name="sum")):
            expect(kept).to_be_in_viewport()
        key = page.locator(".neurons tbody button").last
        assert key.evaluate("({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth")  # its word is whole
    expect(page.locator(".headline")).to_be_in_viewport()
    expect(page.get_by_text("the products of a key add up to its score")).to_be_visible()


def test_pointing_shows_a_number(open_page, heed):
    query = heed.attend("bert", text=TEXT, outputs=["query"], layers=0, heads=0)["query"][0, 0, QUERY]
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}&view=neurons&head=0&query={QUERY}")
    strip = page.get_by_role("img", name="query vector q")
    strip.hover(position={"x": 1, "y": 5})
    expect(page.locator(".tip")).to_have_text(re.compile(r"^q \[0\] = "))
    shown = page.locator(".tip").inner_text().split(" = ")[1]
    assert abs(number(shown) - query[0]) < 1e-3
    strips = page.locator(".neurons .strip")
    expect(page.locator(".neurons .strip i")).to_have_count(strips.count())  # its dimension, of every key
    page.mouse.move(5, 5)
    expect(page.locator(".tip")).to_have_count(0)


def test_the_query_the_keys_and_the_products_have_legends(open_page, heed):
    answer = heed.attend("bert", text=TEXT, outputs=["query", "key"], layers=LAYER, heads=HEAD)
    query, keys = answer["query"][0, 0, QUERY], answer["key"][0, 0]
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}&view=neurons&layer={LAYER}&head={HEAD}&query={QUERY}")
    legends = page.locator(".neurons .legend")
    expect(legends).to_have_count(3)
    for legend, numbers in zip(legends.all(), (query, keys, keys * query), strict=True):
        low, middle, high = legend.locator("small").all_inner_texts()
        assert (number(low), middle) == (-number(high), "0")
        assert number(high) == pytest.approx(np.abs(numbers).max(), rel=5e-3)
    for column, title in enumerate(("query vector q", "key vector k", "q × k")):
        header = page.get_by_role("columnheader", name=title)
        expect(header).to_be_visible()
        expect(header.locator(".legend")).to_have_count(1)
        ends = [
            (box["x"], box["x"] + box["width"]) for box in (header.bounding_box(), legends.nth(column).bounding_box())
        ]
        strip = page.locator(".neurons tr:has(.strip):last-child .strip").nth(max(0, column - 1)).bounding_box()
        assert strip["x"] - 10 <= ends[0][0] < ends[1][0] < ends[1][1] <= strip["x"] + strip["width"] + 20  # above it


def test_a_block_that_multiplies_no_queries_and_keys_has_no_such_view(open_page):
    page = open_page("model=additive")
    expect(page.get_by_role("tab", name="Matrix")).to_be_visible()
    expect(page.get_by_role("tab", name="Neurons")).to_have_count(0)


def test_the_picture_has_the_names_and_the_numbers(open_page, heed):
    answer = heed.attend("bert", text=TEXT, outputs=["weights", "query", "key"])
    scores = answer["key"][LAYER, HEAD] @ answer["query"][LAYER, HEAD, QUERY]
    page = open_page(f"model=bert&text={TEXT.replace(' ', '+')}&view=neurons&layer={LAYER}&head={HEAD}&query={QUERY}")
    expect(page.locator(".neurons tbody tr").first).to_be_visible()
    svg = ElementTree.fromstring(take(page, "SVG").path().read_text())
    texts = [text.text for text in svg.findall(".//{*}text")]
    assert texts[0] == f"bert, head {HEAD}: how the weights of “sat” arise: query × key"
    assert texts[1:7] == [f"query {QUERY} sat, times the scale", "key", "key vector k", "q × k", "sum", "weight"]
    for i, (word, score, weight) in enumerate(zip(answer.tokens, scores, answer.weights[0, HEAD, QUERY], strict=True)):
        name, one, other = texts[7 + 3 * i : 10 + 3 * i]
        assert name == f"{i} {word}"
        assert (abs(number(one) - score) <= 6e-5, other) == (True, percent(weight))
    expect(page.get_by_text(" ".join(texts[-3:-1]))).to_be_visible()  # as the page says it
    assert texts[-1].startswith("The strongest colour stands for: query ")
    bars = len(answer.tokens)
    assert len(svg.findall("{*}rect")) == 1 + bars + answer["query"].shape[-1] * (1 + 2 * bars)


def test_masked_keys_are_marked(open_page):
    causal = quote(json.dumps({"is_causal": True}))
    page = open_page(f"model=multi_head&view=neurons&head=1&query=1&parameters={causal}")
    rows = page.locator(".neurons tbody tr")
    expect(rows.first).to_be_visible()
    masked = [text == "masked" for text in page.locator(".neurons tbody td:nth-child(5)").all_inner_texts()]
    assert masked == [place > 1 for place in range(len(masked))]
    scores = numbers(page, 4)[:2]
    np.testing.assert_allclose(numbers(page, 5)[:2], softmax(scores), atol=ERROR)
