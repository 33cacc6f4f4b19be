"""How the generation of a text ends: by its button, by an error, or because the model is full."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.viewer.generate.words import expect_end, expect_words, row, tokens
from tests.viewer.pages import IN_PARTS, expect_row


def test_stop_keeps_the_words_that_came(open_text, generate):
    page = open_text()
    page.evaluate(IN_PARTS, "/generate/")
    page.get_by_role("spinbutton", name="length").fill("12")
    answer = generate(max_new_tokens=12, outputs=["weights"], layers=1, heads=0)
    expect_words(page, tokens(answer)[:6])  # of 12 tokens and the end half
    expect(page.locator(".ending")).to_contain_text("generating …")
    page.get_by_role("button", name="Stop").click()
    expect_end(page, ", then stopped")
    expect_words(page, tokens(answer)[:6])
    page.locator(".word.new").nth(5).click()
    page.get_by_role("combobox", name="layer").select_option("1")
    expect_row(page, row(answer["generated"][5]))
    page.get_by_role("button", name="Generate").click()
    expect_words(page, tokens(answer))


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("lose()", "the connection was lost before the response was complete"),
        ("fail({status: 507, detail: 'the memory is used up'})", "the memory is used up"),
    ],
)
def test_an_error_in_the_middle_is_shown_with_the_words_so_far(open_text, generate, end, message):
    page = open_text()
    page.evaluate(IN_PARTS, "/generate/")
    page.get_by_role("spinbutton", name="length").fill("12")
    words = tokens(generate(max_new_tokens=12))
    expect_words(page, words[:6])
    page.evaluate(end)
    expect(page.get_by_role("alert")).to_have_text(f"It ended after 6 tokens: {message}")
    expect_words(page, words[:6])
    page.get_by_role("button", name="Generate").click()
    expect_words(page, words)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_value_out_of_range_is_said_beside_its_field(open_text):
    page = open_text(ended=False, length=1000, expected="422")
    field = page.get_by_role("spinbutton", name="length")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("alert")).to_contain_text("expected at most 41, as the model has 48 positions")
    field.fill("41")
    expect_end(page)
    expect(page.locator(".word.new")).to_have_count(41)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_error_of_stop_is_said_beside_its_field(open_text):
    page = open_text(ended=False, stop=json.dumps(["x"] * 17), expected="422")
    expect(page.get_by_role("textbox", name="stop")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("alert")).to_have_text("stop: expected at most 16 texts or token ids, got 17")


def test_a_text_that_fills_the_model_says_so(open_text, generate):
    text = " ".join(["the cat sat"] * 12)
    answer = generate(text=text)
    assert answer["finish_reason"] == "length"
    page = open_text(text=text)
    said = f"{len(answer['generated'])} tokens, the most that the model has positions for"
    expect(page.locator(".ending")).to_contain_text(said)


def test_the_word_that_is_shown_at_first_is_no_special_token(open_text, generate):
    def is_special(token):
        return not token["text"] and re.fullmatch("<.*>", token["token"] or "") is not None

    drawn = ((seed, generate(temperature=4, seed=seed, max_new_tokens=6)) for seed in range(300))
    seed, answer = next(
        (seed, answer) for seed, answer in drawn if [*map(is_special, answer["generated"])][-2:] == [False, True]
    )
    page = open_text(temperature=4, seed=seed, length=6)
    expect(page.locator(".word.new")).to_have_count(len(answer["generated"]))
    expect(page.locator(".word.active")).to_have_attribute("data-row", str(len(answer["generated"]) - 2))


def test_the_controls_are_in_one_line_if_their_end_is_in_another(open_text):
    page = open_text("bart", options={"closed": True, "viewport": {"width": 1240, "height": 900}})
    names = {"combobox": ("layer", "head"), "spinbutton": ("length", "temperature")}
    boxes = [page.get_by_role(role, name=name).bounding_box() for role, all_ in names.items() for name in all_]
    assert max(middle(box) for box in boxes) - min(middle(box) for box in boxes) < 1
    assert middle(page.locator(".ending").bounding_box()) > middle(boxes[0]) + 20  # else the test is of one line
    page.set_viewport_size({"width": 1440, "height": 900})
    text = page.locator(".passages").bounding_box()["y"]
    page.locator(".ending [role=status]").evaluate(
        "(end) => (end.textContent = '13 tokens, then the end-of-text token')"
    )
    box = page.locator(".ending").bounding_box()
    assert abs(middle(box) - middle(page.get_by_role("button", name="Generate", exact=True).bounding_box())) < 2
    assert page.locator(".passages").bounding_box()["y"] == text


def middle(box):
    return box["y"] + box["height"] / 2
