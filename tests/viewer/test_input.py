"""What the model is run on: texts, pairs, random tensors, JSON; and the model's parameters."""

import json
import math
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.support.waiting import until
from tests.viewer.pages import EXAMPLE, attend, copied, drawn, expect_row, paste, selected, take

BLOCK = "model=scaled_dot_product&view=head"
QUERY = [[1.0, 2.0], [0.5, -1.0], [0.0, 3.0]]
KEY = [[0.3, 1.0], [-2.0, 0.1]]
VALUE = [[1.0], [2.0]]


def test_a_text_is_counted_and_cut_and_without_one_nothing_is_run(open_page):
    page = open_page("model=bert&text=")
    runs = []
    page.on("request", lambda request: request.method == "POST" and runs.append(request.post_data or ""))
    panel = page.get_by_role("region", name="input")
    expect(panel).to_contain_text("Type a text")
    page.get_by_role("button", name="use an example sentence").click()
    expect(page.locator(".thumbnail")).to_have_count(4)
    assert "The animal" in runs[0]  # what was run without a text would be before it
    box = page.get_by_role("textbox", name="text", exact=True)
    box.fill("the cat sat")
    expect(panel.locator(".count")).to_have_text("5 of 12 tokens")
    box.fill("the cat sat on the mat " * 5)
    expect(panel.locator(".count")).to_have_text("12 of 12 tokens")
    expect(panel).to_contain_text("its end was cut off")
    box.fill("  ")
    expect(page.locator(".thumbnail")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_pair_of_texts(open_page):
    page = open_page("model=bert&text=the+cat&view=head&query=0")
    page.get_by_role("button", name="add a second text").press("Enter")
    expect(page.get_by_role("textbox", name="second text")).to_be_focused()
    page.get_by_role("textbox", name="second text").fill("on the mat")
    expect(page.locator(".count")).to_have_text("8 of 12 tokens")
    expect(page.locator(".selection")).to_contain_text("“mat” (6)")
    expect(page).to_have_url(re.compile("pair=on"))
    page.get_by_role("button", name="remove the second text").press("Enter")
    expect(page.get_by_role("button", name="add a second text")).to_be_focused()
    expect(page.locator(".count")).to_have_text("4 of 12 tokens")


def test_a_text_model_that_is_chosen_starts_with_a_sentence(open_page):
    page = open_page(BLOCK)
    model = page.get_by_role("combobox", name="model", exact=True)
    model.select_option("bert")
    box = page.get_by_role("textbox", name="text", exact=True)
    expect(box).to_have_value(re.compile("^The animal"))
    box.fill("the cat")
    held = []
    page.route("**/v1/attention/additive", lambda route: held.append(route))
    with page.expect_request("**/v1/attention/additive"):
        model.select_option("additive")
    model.select_option("bert")
    with page.expect_response("**/v1/attention/additive"):  # arrives after another model was chosen
        held[0].continue_()
    page.evaluate("fetch('/v1/attention').then((response) => response.json())")
    expect(box).to_have_value("the cat")
    expect(model).to_have_value("bert")


def test_a_model_in_a_link_draws_a_sentence_with_its_controls_closed(open_page):
    page = open_page("model=bert", closed=True, viewport={"width": 390, "height": 844})
    expect(page.locator(".thumbnail")).to_have_count(4)
    expect(page.get_by_role("button", name="add a second text")).to_be_hidden()
    assert page.locator(".thumbnail").first.bounding_box()["y"] < 500
    page.get_by_role("tab", name="Tokens").click()
    expect(page.locator(".selection")).to_contain_text("looks at")
    page.get_by_role("button", name="Options").click()
    expect(page.get_by_role("button", name="add a second text")).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="add a second text")).to_be_visible()


def test_a_text_is_not_in_the_link_of_a_model_that_takes_none(open_page):
    page = open_page("model=bert&text=the+cat&target=old")
    expect(page.locator(".thumbnail")).to_have_count(4)
    page.get_by_role("combobox", name="model", exact=True).select_option("additive")
    expect(page.get_by_role("radio", name="example")).to_be_checked()
    expect(page).not_to_have_url(re.compile("text="))
    expect(page).not_to_have_url(re.compile("target="))


def test_a_request_is_pasted_and_its_tokens_named(open_page):
    page = open_page(f"{BLOCK}&query=1")
    paste(page, query=QUERY, key=KEY, value=VALUE, scale=0.25, outputs=["weights"])
    expect_row(page, attend(QUERY, KEY, 0.25)[1])
    panel = page.get_by_role("region", name="input")
    expect(panel.get_by_role("list", name="given tensors")).to_contain_text("query 1 × 1 × 3 × 2")
    expect(panel).to_contain_text("Not used: outputs")
    expect(panel.get_by_role("spinbutton", name="scale")).to_have_value("0.25")
    labels = page.get_by_role("textbox", name="token labels")
    labels.fill('["new york", "rain"]')
    expect(page.locator(".selection li", has_text="new york")).to_be_visible()
    labels.fill("a b c d")
    expect(panel).to_contain_text("4 labels, 3 queries, 2 keys: positions are shown instead.")
    page.evaluate("location.hash = 'model=additive'")  # tensors stay with their model
    expect(page.get_by_role("radio", name="example")).to_be_checked()
    expect(page.locator(".thumbnail").first).to_be_visible()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"query": [[1, 2], [3]]', "is not JSON"),
        ("[[1, 2]]", "expected an object with the tensors by name"),
        ('{"query": [["a"]]}', 'query: expected numbers, got "a"'),
    ],
)
def test_one_tensor_is_pasted_by_its_name_after_what_is_wrong(open_page, text, message):
    """test_files.py has what else is wrong with JSON."""
    page = open_page(f"{BLOCK}&query=0")
    box = paste(page, text)
    expect(page.get_by_role("alert")).to_contain_text(message)
    expect(box).to_have_attribute("aria-invalid", "true")
    page.get_by_role("combobox", name="paste").select_option("query")
    paste(page, json.dumps(QUERY))
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("region", name="input")).to_contain_text("Missing: key.")
    page.get_by_role("combobox", name="paste").select_option("key")
    paste(page, json.dumps(KEY))
    expect_row(page, attend(QUERY, KEY)[0])


def mulberry32(seed):
    """The generator of server/request.js, by its definition."""
    while True:
        seed = (seed + 0x6D2B79F5) & 0xFFFFFFFF
        mixed = (seed ^ seed >> 15) * (1 | seed) & 0xFFFFFFFF
        mixed = (mixed + ((mixed ^ mixed >> 7) * (61 | mixed) & 0xFFFFFFFF) & 0xFFFFFFFF) ^ mixed
        yield (mixed ^ mixed >> 14) / 2**32


def normal(uniform, *shape):
    values = []
    for _ in range(math.ceil(math.prod(shape) / 2)):
        radius, angle = math.sqrt(-2 * math.log(1 - next(uniform))), 2 * math.pi * next(uniform)
        values += [radius * math.cos(angle), radius * math.sin(angle)]
    return np.array(values[: math.prod(shape)], np.float32).reshape(shape)


def test_random_tensors_are_the_same_for_the_same_seed(open_page):
    page = open_page(f"{BLOCK}&query=2&head=1")
    page.get_by_role("radio", name="random").check()
    sizes = {"batch": 2, "heads": 2, "m": 4, "n": 6, "d_k": 3, "kv_heads": 2, "d_v": 1, "seed": 5}
    for name, size in sizes.items():
        page.get_by_role("group", name="random tensors").get_by_label(name, exact=True).fill(str(size))
    draws = normal(mulberry32(1), 100_000)
    assert (draws.mean(), draws.std()) == pytest.approx((0, 1), abs=0.01)
    uniform = mulberry32(5)
    weights = attend(normal(uniform, 2, 2, 4, 3), normal(uniform, 2, 2, 6, 3))
    expect_row(page, weights[0, 1, 2])
    page.get_by_role("combobox", name="row of the batch").select_option("1")
    expect_row(page, weights[1, 1, 2])
    expect_row(open_page(page.url.split("#")[1]), weights[1, 1, 2])
    page.get_by_role("radio", name="example").check()
    expect(page).not_to_have_url(re.compile("random"))


def test_numbers_are_typed_key_by_key(open_page):
    page = open_page(f'{BLOCK}&query=0&random={{"seed":1,"sizes":{{"m":3,"n":4}}}}')
    field = page.get_by_role("group", name="random tensors").get_by_role("spinbutton", name="n", exact=True)
    field.press("Control+a")
    for key, shown in {"Backspace": "", "0": "0", "Delete": "0", "End": "0"}.items():
        field.press(key)
        expect(field).to_have_value(shown)
    field.blur()
    expect(field).to_have_value("4")  # 0 was no size
    field.press("Control+a")
    field.press_sequentially("12")
    expect(field).to_have_value("12")
    expect(page.get_by_role("list", name="given tensors")).to_contain_text("key 1 × 1 × 12 × 1")
    options = page.get_by_role("group", name="options")
    field = options.get_by_role("spinbutton", name="scale")
    for number in ("0.05", "-0.5", "1e-2"):
        for character in number:
            field.press(character)
            drawn(page)
        expect(field).to_have_value(number)
        field.blur()
        expect(field).to_have_value(str(float(number)))
        expect(page).to_have_url(re.compile(re.escape(f"parameters=%7B%22scale%22%3A{float(number)}%7D")))
        options.get_by_role("button", name="scale: default").click()
        expect(field).to_have_value("")


def test_parameters_are_answered_live(open_page, heed):
    page = open_page(f"{BLOCK}&query=0")
    example = heed.describe("scaled_dot_product").example
    query, key = (np.array(example[name], np.float32)[0, 0] for name in ("query", "key"))
    options = page.get_by_role("group", name="options")
    expect(options.get_by_role("checkbox", name="is_causal")).to_have_accessible_name("causal is_causal")
    expect(options.get_by_text("left window size")).to_be_visible()
    expect(options.locator("code")).to_contain_text(["is_causal", "left_window_size"])
    expect_row(page, attend(query, key)[0])
    options.get_by_role("spinbutton", name="scale").fill("2")
    expect_row(page, attend(query, key, 2)[0])
    slider = options.get_by_role("slider", name="scale, slider")
    expect(slider).to_have_value("2")
    slider.fill("1.5")
    expect_row(page, attend(query, key, 1.5)[0])
    expect(page).to_have_url(re.compile("parameters=.*scale.*1.5"))
    options.get_by_role("button", name="scale: default").click()
    options.get_by_role("checkbox", name="is_causal").check()
    expect(page.locator(".selection")).to_contain_text("(0) 100 %")
    page.get_by_role("combobox", name="look at").select_option("scores")
    expect(page.locator(".selection li")).to_have_count(1)  # without those that are masked
    expect(page).to_have_url(re.compile("parameters=%7B%22is_causal%22%3Atrue%7D"))


def test_an_error_stands_beside_its_field(open_page):
    page = open_page(f"{BLOCK}&query=0", expected="400")
    field = page.get_by_role("group", name="options").get_by_role("spinbutton", name="softcap")
    before = selected(page)
    field.fill("-1")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_accessible_description("softcap: expected at least 0, got -1.0")
    expect(page.get_by_role("alert")).to_have_count(1)
    assert selected(page) == before
    field.fill("1")
    expect(page.get_by_role("alert")).to_have_count(0)
    paste(page, query=QUERY, key=[[1, 2, 3]])
    message = "key: expected axis 3 (d_k) to be 2, as in query, got 3 (shape [1, 1, 1, 3])"
    tensors = page.get_by_role("list", name="given tensors")
    expect(tensors.get_by_role("alert")).to_have_text(message)


def open_and_fail(open_page, requests):
    """A page whose next run fails, as ``requests`` are aborted, and the numbers that it shows."""
    page = open_page(f"{BLOCK}&query=0", expected="ERR_FAILED")
    before = selected(page)
    page.route(requests, lambda route: route.abort())
    page.get_by_role("combobox", name="look at").select_option("scores")
    return page, before


def test_a_run_that_failed_does_not_rename_what_is_drawn(open_page):
    page, before = open_and_fail(open_page, "**/infer")
    answer = page.locator(".answer.stale")
    expect(answer).to_contain_text("The last successful run is shown: the server does not respond")
    assert selected(page) == before
    assert "scores" not in take(page, "JSON").path().read_text()
    page.unroute("**/infer")
    page.get_by_role("button", name="try again").click()
    expect(answer).to_have_count(0)
    expect(page.locator(".selection")).not_to_contain_text(before[1])


def test_the_page_reconnects_and_only_the_drawing_is_dimmed(open_page):
    page, before = open_and_fail(open_page, "**/v2/**")
    message = page.locator(".answer.stale > .bad")
    expect(message).to_contain_text("the server does not respond")
    assert message.evaluate("(one) => getComputedStyle(one.parentElement).opacity") == "1"
    page.unroute("**/v2/**")
    expect(page.locator(".answer.stale")).to_have_count(0)
    until(lambda: selected(page) != before)


def test_a_wrong_model_in_a_link_offers_those_there_are(open_page):
    page = open_page("model=no-such-model", expected="404")
    page.get_by_role("link", name="bert").click()
    expect(page.locator(".thumbnail")).to_have_count(4)


def test_it_starts_again_after_a_failure(open_page):
    page = open_page("model=scaled_dot_product", expected="ERR_FAILED")
    start = page.url.split("#")[0]
    for url, fragment in {"**/v1/attention": "", "**/example.json": f"#{EXAMPLE}"}.items():
        page.route(url, lambda route: route.abort())
        page.goto(f"{start}?again{fragment}")
        page.reload()
        expect(page.locator(".workspace")).to_contain_text("Nothing to show")
        page.unroute(url)
        page.get_by_role("button", name="try again").click()
        expect(page.locator("#view canvas").first).to_be_visible()
    assert page.evaluate("`'${location.origin}/v1/`") in copied(page, "curl")


def test_a_model_with_two_stacks_opens_on_its_cross_weights(open_page):
    page = open_page("model=bert&text=the+cat")
    names = ["weights", "encoder_weights", "cross_weights", "output"]
    kind, titles = page.evaluate(
        """async (names) => {
          const { kindsOf, openingKind } = await import("heed/server/run.js");
          const { titlesOf } = await import("heed/views/controls.js");
          const model = { tokenizer: {}, outputs: names.map((name) => ({ name })) };
          return [openingKind(model), Object.values(titlesOf(kindsOf(model)))];
        }""",
        names,
    )
    assert kind == "cross_weights"
    assert titles == ["decoder", "cross: decoder to encoder", "encoder"]
