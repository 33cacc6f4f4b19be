"""The view Steps: the numbers from two vectors to a weight and an output, for blocks of which they are true."""

import itertools
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import expect

from heed_client import Client
from tests.support.waiting import until
from tests.viewer.pages import attend, paste, softmax, take

QUERY = [[1.0, 2.0, -0.5], [0.5, -1.0, 0.25]]
KEY = [[0.3, 1.0, 0.0], [-2.0, 0.1, 1.0], [0.7, 0.7, 0.7]]
VALUE = [[1.0, -1.0], [2.0, 0.5], [0.0, 3.0]]
ERROR = 2e-6


@pytest.fixture(scope="module")
def more_blocks(repository, shared_server, tmp_path_factory):
    """The address of a server."""
    folder = tmp_path_factory.mktemp("more_blocks")
    for name in ("multi_head", "projected", "dot_product", "additive", "linear"):
        shutil.copytree(repository / name, folder / name)
    return shared_server(folder).url


def number(page, label):
    value = page.locator("ol.steps").get_by_label(label, exact=True).get_attribute("value")
    return float(value.replace("Infinity", "inf"))


def wait_for(page, label, value):
    value_of = page.locator("ol.steps").get_by_label(label, exact=True)
    until(lambda: value_of.count() and abs(number(page, label) - value) < ERROR)


def cells(page, label):
    vector = page.get_by_role("list", name=label, exact=True)
    for folded in vector.get_by_role("button", name=re.compile("more$")).all():
        folded.click()
    items = vector.locator("data")
    return np.array([float(item.get_attribute("value")) for item in items.all()])


def boxes(stages):
    return [stage.locator(".tensor").bounding_box() for stage in stages]


def middles(stages):
    return {round(box["y"] + box["height"] / 2) for box in boxes(stages)}


def test_each_step_of_a_pair(open_page):
    page = open_page("model=scaled_dot_product&view=steps&query=1&key=2")
    paste(page, query=QUERY, key=KEY, value=VALUE, scale=0.8, softcap=1.5, attn_mask=[[0.0, 0.1, 0.2]] * 2)
    q, k, v = np.array(QUERY), np.array(KEY), np.array(VALUE)
    capped = 1.5 * np.tanh(q @ k.T * 0.8 / 1.5)
    scores = capped + np.array([0.0, 0.1, 0.2])
    weights = softmax(scores)
    wait_for(page, "weight", weights[1, 2])
    np.testing.assert_allclose(cells(page, "products"), q[1] * k[2], atol=ERROR)
    steps = {
        "sum of the products": q[1] @ k[2],
        "scaled product": q[1] @ k[2] * 0.8,
        "softcap": capped[1, 2],
        "score": scores[1, 2],
    }
    assert {label: number(page, label) for label in steps} == pytest.approx(steps, abs=ERROR)
    np.testing.assert_allclose(cells(page, "scores of the query"), scores[1], atol=ERROR)
    headings = page.locator("ol.steps").get_by_role("heading")
    expect(headings.filter(has_text="score")).to_have_text(["score and weight", "scores of query 1"])
    chain = page.locator(".chain > li")
    expect(chain).to_have_text(
        [re.compile(f"^{text}") for text in (r"q · k =", r"× 0\.8 =", "1.5 tanh", r"\+ 0\.2 =", "softmax =")]
    )
    expect(chain.locator("small").nth(3)).to_have_text("mask: the score")
    expect(page.locator("ol.steps")).to_contain_text(f"lse = ln Σ exp(score) = {np.log(np.exp(scores[1]).sum()):.4f}")
    shown = page.get_by_role("list", name="products").locator("data").all_inner_texts()
    assert {len(text.split(".")[1]) for text in shown} == {4}
    np.testing.assert_allclose(cells(page, "weight times value"), weights[1, 2] * v[2], atol=ERROR)
    np.testing.assert_allclose(cells(page, "output"), weights[1] @ v, atol=ERROR)
    expect(page.locator(".formula .katex")).to_be_visible()
    loaded = "() => [...document.fonts].some(({ family, status }) => family.startsWith('KaTeX') && status === 'loaded')"
    page.wait_for_function(loaded)


def test_an_edited_number_is_run_again(open_page):
    page = open_page("model=scaled_dot_product&view=steps&query=0&key=1")
    paste(page, query=QUERY, key=KEY, value=VALUE)
    q, k, v = np.array(QUERY), np.array(KEY), np.array(VALUE)
    wait_for(page, "weight", attend(q, k)[0, 1])
    page.get_by_role("textbox", name="query 2").fill("1.25")
    page.get_by_role("textbox", name="value 1").fill("-4")  # before the first edit is answered
    page.get_by_role("textbox", name="key 0").fill("0.5")  # the last one, because the weight shows that it is answered
    q[0, 2], k[1, 0], v[1, 1] = 1.25, 0.5, -4
    wait_for(page, "weight", attend(q, k)[0, 1])
    np.testing.assert_allclose(cells(page, "output"), attend(q, k)[0] @ v, atol=ERROR)


def test_an_edit_keeps_the_pair_that_is_shown(open_page):
    page = open_page("model=scaled_dot_product&view=steps")
    paste(page, query=[[1.0, 0.0]], key=[[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], value=VALUE)
    name = "Query 0 and key 1, number by number Edit a number in a box to see what changes."
    heading = page.get_by_role("heading", name=name)
    expect(heading).to_be_visible()
    page.get_by_role("textbox", name="query 0", exact=True).fill("-2")
    wait_for(page, "weight", softmax(np.array([0, -2, 0]) / np.sqrt(2))[1])
    expect(heading).to_be_visible()  # the other keys have larger weights


def test_grouped_heads_and_a_masked_key(open_page):
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((1, 4, 2, 3)), rng.standard_normal((1, 2, 3, 3)), rng.standard_normal((1, 2, 3, 2))
    page = open_page("model=scaled_dot_product&view=steps&query=1&key=0&head=3")
    paste(page, query=q.tolist(), key=k.tolist(), value=v.tolist(), is_causal=True)
    weights = attend(q[0, 3, 1:], k[0, 1, :2])[0]
    wait_for(page, "weight", weights[0])
    assert number(page, "sum of the products") == pytest.approx(q[0, 3, 1] @ k[0, 1, 0], abs=ERROR)
    np.testing.assert_allclose(cells(page, "output"), weights @ v[0, 1, :2], atol=ERROR)
    page.get_by_role("tabpanel").get_by_role("combobox", name="key").select_option("2")
    wait_for(page, "weight", 0)
    assert number(page, "score") == -np.inf
    expect(page.get_by_role("list", name="scores of the query").locator("data").last).to_have_text("masked")
    expect(page.locator("ol.steps").get_by_label("score", exact=True)).to_have_text("masked")


def test_other_scores_are_no_dot_products(open_page, heed):
    request = {**heed.describe("additive").example, "outputs": ["scores", "weights", "output"]}
    answer = heed.attend("additive", **request)
    page = open_page("model=additive&view=steps&query=0&key=0")
    wait_for(page, "weight", answer.weights.ravel()[0])
    assert number(page, "score") == pytest.approx(answer.scores.ravel()[0], abs=ERROR)
    np.testing.assert_allclose(cells(page, "output"), answer.output[0, 0], atol=ERROR)
    expect(page.get_by_label("sum of the products")).to_have_count(0)
    expect(page.get_by_role("list", name="products")).to_have_count(0)
    expect(page.get_by_role("tab", name="Ablate")).to_have_count(0)  # it has no head mask


def test_vectors_before_and_after_the_projections_of_a_block(open_page, heed):
    outputs = ["weights", "scores", "head_query", "present_key", "present_value", "head_output", "output"]
    answer = heed.attend("multi_head", **heed.describe("multi_head").example, outputs=outputs)
    query, key, value = (getattr(answer, name)[0, 1] for name in outputs[2:5])
    page = open_page("model=multi_head&view=steps&query=1&key=2&head=1")
    wait_for(page, "weight", answer.weights[0, 1, 1, 2])
    for label, numbers in {
        "projected query": query[1],
        "projected key": key[2],
        "projected value": value[2],
        "products": query[1] * key[2],
        "output of the head": answer.head_output[0, 1, 1],
        "output": answer.output[0, 1],
    }.items():
        np.testing.assert_allclose(cells(page, label), numbers, atol=ERROR)
    assert number(page, "score") == pytest.approx(answer.scores[0, 1, 1, 2], abs=ERROR)
    page.get_by_role("list", name="query", exact=True).get_by_role("button", name="48 more").click()
    assert page.get_by_role("textbox", name="query").count() == 64


def test_a_pointed_query_is_marked_in_each_tensor(open_page):
    page = open_page("model=multi_head&view=steps&query=1&key=2")
    stages = page.get_by_role("list", name="tensors of the head").get_by_role("listitem")
    shapes = ["query 2 × 64", "projected query 2 × 8", "key 3 × 64", "projected key 3 × 8"]
    shapes += ["value 3 × 64", "projected value 3 × 8", "scores 2 × 3", "weights 2 × 3"]
    shapes += ["output of the head 2 × 8", "output 2 × 64"]
    expect(stages.get_by_role("heading")).to_have_text(shapes)
    expect(stages.nth(6).locator("> .formula-line .katex")).to_be_visible()
    expect(stages.nth(6).locator(".sign .katex-html")).to_contain_text("÷")
    until(lambda: len(middles(stages.all()[:4])) == 1)  # of two and of three rows
    of_queries = [0, 1, 6, 7, 8, 9]
    rows = lambda: [row.evaluate("(one) => one.style.top") for row in stages.locator(".row").all()]  # noqa: E731
    until(lambda: [rows()[place] for place in of_queries] == ["50%"] * 6)
    scores = page.get_by_role("application", name="scores, 2 × 3")
    expect(stages.nth(6).locator(".numbers span")).to_have_count(6)
    expect(stages.nth(0).locator(".numbers")).to_have_count(0)  # 64 numbers are too narrow
    expect(stages.nth(6).locator(".operands")).to_have_text("q: projected query k: projected key")
    box = scores.bounding_box()
    first = {"x": box["width"] / 6, "y": box["height"] / 4}
    scores.hover(position=first)
    until(lambda: rows() == ["0%"] * 10)
    expect(page.locator(".tensor .tip")).to_contain_text("scores [0, 0] = ")
    expect(page.locator(".headline")).to_contain_text("Query 0 → key 0: ")
    scores.click(position=first)
    expect(page.get_by_role("heading", name="Query 0 and key 0, number by number")).to_be_visible()


def test_a_number_is_marked_in_its_tensor_and_among_those_of_the_pair(open_page):
    """By the pointer and by keys, in both directions."""
    page = open_page("model=multi_head&view=steps&query=1&key=2")
    tip, marked = page.locator(".tensor .tip"), page.locator(".cells [data-pointed]")
    numbers = page.get_by_role("list", name="projected key", exact=True).locator("data")
    numbers.nth(3).hover()
    expect(tip).to_have_text(re.compile(r"^projected key \[2, 3\] = "))
    expect(marked).to_have_text(numbers.nth(3).inner_text())
    page.mouse.move(0, 0)
    page.get_by_role("textbox", name="key 5", exact=True).focus()
    expect(tip).to_have_text(re.compile(r"^key \[2, 5\] = "))
    page.get_by_role("application", name="projected key, 3 × 8").focus()
    expect(tip).to_have_count(0)
    page.keyboard.press("ArrowRight")
    expect(tip).to_have_text(re.compile(r"^projected key \[2, 0\] = "))
    page.keyboard.press("ArrowRight")
    expect(tip).to_have_text(re.compile(r"^projected key \[2, 1\] = "))
    expect(marked).to_have_text(numbers.nth(1).inner_text())
    page.keyboard.press("ArrowUp")
    expect(tip).to_have_text(re.compile(r"^projected key \[1, 1\] = "))
    expect(marked).to_have_count(0)  # of another key
    expect(page.locator(".headline")).to_contain_text("Query 1 → key 1: ")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Query 1 and key 1, number by number")).to_be_visible()
    page.keyboard.press("Escape")
    expect(tip).to_have_count(0)


@pytest.mark.parametrize(
    ("model", "scores", "weights", "arrows"),
    [
        ("multi_head", r"q k^\top / \sqrt{d_k}", r"\mathrm{softmax}(S)", r"{}\times W^Q_i + b^Q_i"),
        ("projected", r"q k^\top / \sqrt{d_k}", r"\mathrm{softmax}(S)", r"{}\times W^Q + b^Q"),
        ("dot_product", r"s\,Q K^\top", r"\mathrm{softmax}(S)", r"{}\times s"),
        ("additive", "f(Q, K)", r"\mathrm{softmax}(S)", "f"),
        ("linear", "f(Q, K)", r"S / \sum_j S", r"\div \sum_j S"),
    ],
)
def test_formulas_and_arrows_are_those_of_the_block(open_page, more_blocks, model, scores, weights, arrows):
    page = open_page(f"model={model}&view=steps&query=0&key=0", url=more_blocks)
    formulas = page.locator(".stages .formula-line")
    expect(page.locator("ol.steps").get_by_label("weight", exact=True)).to_be_visible()
    labels = lambda: formulas.evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))")  # noqa: E731
    until(lambda: {f"S = {scores}", f"A = {weights}", rf"\xrightarrow{{{arrows}}}"} <= set(labels()))
    drawing = take(page, "SVG").path().read_text()
    assert "undefined" not in drawing  # each sign has its letter
    assert ("∑" in drawing) == ("sum" in weights)


def test_a_block_without_an_output_projection(open_page, more_blocks):
    with Client(more_blocks) as client:
        example = client.describe("projected").example
        answer = client.attend("projected", **example, outputs=["weights", "output"])
    page = open_page("model=projected&view=steps&query=1&key=2", url=more_blocks)
    wait_for(page, "weight", answer.weights.ravel()[3 + 2])
    np.testing.assert_allclose(cells(page, "output"), answer.output.reshape(2, -1)[1], atol=ERROR)
    titles = page.get_by_role("list", name="tensors of the head").get_by_role("heading")
    expect(titles.last).to_have_text("output 2 × 12")


def test_tensors_of_up_to_eight_columns_have_numbers_in_two_lines(open_page):
    page = open_page("model=multi_head&view=steps&query=1&key=2", closed=True, viewport={"width": 1440, "height": 900})
    stages = page.get_by_role("list", name="tensors of the head").get_by_role("listitem")
    for width in (1440, 2560):
        page.set_viewport_size({"width": width, "height": 900})
        for place, numbers in {1: 16, 3: 24, 5: 24, 6: 6, 7: 6, 8: 16}.items():
            expect(stages.nth(place).locator(".numbers span")).to_have_count(numbers)
        until(lambda: (len(middles(stages.all()[:6])), len(middles(stages.all()[6:]))) == (1, 1))  # two lines
        lines = stages.nth(6).locator(".operands span, h3, .formula-line:not(.sign *) .katex-base").all()
        baseline = """(one) => {
            const mark = Object.assign(document.createElement("span"), {style: "display: inline-block"});
            one.append(mark);
            const {bottom} = mark.getBoundingClientRect();
            mark.remove();
            return bottom;
        }"""
        assert len({number.bounding_box()["y"] for number in page.locator(".chain data").all()}) == 1  # one line
        first, second, title, formula = (line.evaluate(baseline) for line in lines[:4])
        assert (first, second) == (pytest.approx(title, abs=1), pytest.approx(formula, abs=1))
        assert max(box["x"] + box["width"] for box in boxes(stages.all())) < width
        columns = [box["width"] / columns for box, columns in zip(boxes(stages.all()[6:9]), (3, 3, 8), strict=True)]
        assert max(columns) - min(columns) < 1


def test_an_edit_and_the_output_of_short_vectors_are_on_the_first_screen(open_page):
    page = open_page("model=scaled_dot_product&view=steps", closed=True, viewport={"width": 1440, "height": 900})
    vectors = [page.get_by_role("list", name=name, exact=True) for name in ("query", "key", "products", "output")]
    expect(vectors[3]).to_be_visible()
    assert page.evaluate("document.documentElement.scrollHeight") == 900
    first, second, third, output = (vector.bounding_box() for vector in vectors)
    assert first["y"] < second["y"] < third["y"]
    assert output["x"] > first["x"] + first["width"]
    assert output["y"] + output["height"] < 900
    tensors = page.locator(".tensor")
    cell = tensors.first.bounding_box()["width"]
    page.set_viewport_size({"width": 2560, "height": 1440})
    until(lambda: tensors.first.bounding_box()["width"] > 1.5 * cell)
    right = tensors.last.bounding_box()
    assert right["x"] + right["width"] < 2560
    page.set_viewport_size({"width": 390, "height": 844})
    until(lambda: len({vector.bounding_box()["x"] for vector in vectors}) == 1)  # one below the other
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_tensors_of_a_narrow_window_are_below_each_other_with_arrows_down(open_page):
    page = open_page("model=multi_head&view=steps&query=1&key=2", closed=True, viewport={"width": 1440, "height": 900})
    signs = page.locator(".stages .sign .katex-html")
    expect(signs.first).to_be_visible()
    assert not any("↓" in text for text in signs.all_inner_texts())
    page.set_viewport_size({"width": 390, "height": 844})
    expect(signs).to_have_count(7)
    until(lambda: sum("↓" in text for text in signs.all_inner_texts()) == 6)  # all but the last product's
    tensors = [tensor.bounding_box() for tensor in page.locator(".tensor").all()]
    assert all(one["y"] + one["height"] < other["y"] for one, other in itertools.pairwise(tensors))
    expect(page.locator(".tensor").nth(1).locator(".numbers span")).to_have_count(16)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.reload()
    expect(page.get_by_role("textbox", name=re.compile(r"^query \d+$"))).to_have_count(7)
    until(lambda: page.evaluate("document.documentElement.scrollHeight") < 2700)
    lines = "(numbers) => new Set(numbers.map((number) => number.getBoundingClientRect().y)).size"
    assert page.locator(".chain data").evaluate_all(lines) == 1  # of one moment: fonts may still arrive


def test_long_vectors_are_folded(open_page):
    page = open_page("model=multi_head&view=steps&query=1&key=2")
    fields = page.get_by_role("textbox", name=re.compile(r"^query \d+$"))
    expect(fields).to_have_count(16)
    page.get_by_role("list", name="query", exact=True).get_by_role("button", name="48 more").click()
    expect(fields).to_have_count(64)


def test_a_saved_drawing_has_the_tensors_with_their_formulas(open_page):
    page = open_page("model=scaled_dot_product&view=steps&query=1&key=2")
    paste(page, query=QUERY, key=KEY, value=VALUE)
    expect(page.locator("ol.stages h3").first).to_contain_text("2 × 3")
    svg = ElementTree.fromstring(take(page, "SVG").path().read_text())
    texts = ["".join(text.itertext()).replace("\u200b", "") for text in svg.findall(".//{*}text")]
    assert texts[0] == "scaled_dot_product: head 0, query 1 and key 2 are framed"
    shown = {"query 2 × 3": "Q", "key 3 × 3": "K", "scores 2 × 3": "S = Q K⊤ / √dk", "weights 2 × 3": "A = softmax(S)"}
    assert {title: texts[texts.index(title) + 1] for title in shown} == shown
    start = texts.index("A = softmax(S)") + 1
    expected = attend(QUERY, KEY)
    np.testing.assert_allclose([float(text) for text in texts[start : start + 6]], expected.ravel(), atol=5.1e-3)
    frames = [rect for rect in svg.findall(".//{*}rect") if rect.get("stroke") == "#1d4e89"]
    assert len(frames) == 2  # of scores and weights
    signs = [text for text in svg.findall(".//{*}text") if text.get("font-family") == "serif" and text.get("fill")]
    names = ["".join(sign.itertext()).replace("\u200b", "") for sign in signs]
    assert names == ["×", "÷ √dk", "softmax", "×", "="]
    assert len({sign.get("y") for sign in signs}) == 3  # the middles of two and of three rows, and above the arrows
    assert len(svg.findall(".//{*}path")) == 2
    assert texts.count("⊤") == 1  # of the keys
    expect(page.locator(".stages + .note")).to_have_text(" ".join(texts[-2:]))


def test_small_numbers_keep_their_digits(open_page):
    page = open_page("model=scaled_dot_product&view=steps&query=0&key=0")
    paste(page, query=[[0.02, 0.0]], key=[[0.02, 1.0]], value=[[0.00004, 1.0]], attn_mask=[[0.1]])
    expect(page.locator("ol.steps").get_by_label("sum of the products", exact=True)).to_have_text("0.0004")
    expect(page.locator("ol.steps")).to_contain_text("+ 0.1")
    expect(page.get_by_role("list", name="products").locator("data")).to_have_text(["0.0004", "0"])
    output = page.get_by_role("list", name="output", exact=True)
    expect(output.locator("data")).to_have_text(["4.00e−5", "1.0000"])


def test_a_head_that_is_switched_off(open_page, heed):
    request = {**heed.describe("multi_head").example, "outputs": ["weights"]}
    heads = heed.attend("multi_head", **request).weights.shape[1]
    masked = heed.attend("multi_head", **request, head_mask=[[0 if head == 1 else 1 for head in range(heads)]])
    page = open_page("model=multi_head&view=steps&query=0&key=0&head=1&ablated=[[0,1]]")
    wait_for(page, "weight", masked.weights[0, 1, 0, 0])
    expect(page.locator("ol.steps").get_by_label("weight", exact=True)).to_have_text("0")
    page.goto(page.url.partition("#")[0] + "#model=encoder&view=steps")  # without query and key
    expect(page.get_by_role("tab", name="Steps")).to_have_count(0)
    expect(page.get_by_role("tab", name="Ablate")).to_be_visible()


def test_a_link_to_a_view_that_the_model_does_not_have(open_page):
    page = open_page("model=bert&view=steps")
    expect(page.get_by_text("bert has no view “steps”, which needs a single attention block.")).to_be_visible()
    expect(page.get_by_role("tab", name="Model")).to_have_attribute("aria-selected", "true")
    page.get_by_role("button", name="close").click()
    expect(page.get_by_text("has no view")).to_have_count(0)
    expect(page.get_by_role("tab", name="Model")).to_be_focused()
    page.goto(page.url.partition("#")[0] + "#model=bert&view=steps")
    expect(page.get_by_text("has no view")).to_be_visible()
    page.get_by_role("tab", name="Matrix").click()
    expect(page.get_by_text("has no view")).to_have_count(0)
