"""Generation of an encoder beside a decoder: its alignment, its alternatives, and what is sent."""

import re

import numpy as np
from playwright.sync_api import expect

from tests.viewer.generate.words import PROMPT, TEXT, expect_end, expect_words, row, shown, tokens
from tests.viewer.pages import IN_PARTS, expect_row, take


def test_the_alignment_of_two_stacks_builds_up(open_text, generate):
    options = {"layers": 2, "heads": 1}
    answer = generate("bart", max_new_tokens=12, outputs=["cross_weights"], **options)
    page = open_text("bart", layer=2, head=1)
    page.evaluate(IN_PARTS, "/generate/")
    page.get_by_role("spinbutton", name="length").fill("12")
    expect_words(page, tokens(answer)[:6])
    matrix = page.get_by_role("region", name="alignment").get_by_role("application")
    expect(matrix).to_have_attribute("aria-label", re.compile(f"^weights of 6 queries.* and {len(PROMPT)} keys"))
    page.evaluate("release()")
    expect(matrix).to_have_attribute("aria-label", re.compile(f"^weights of 12 queries.* and {len(PROMPT)} keys"))
    expect(page.get_by_role("group", name="source")).to_contain_text(" ".join(PROMPT))
    page.locator(".word.new").nth(10).click()
    expect_row(page, row(answer["generated"][10], "cross_weights"))
    table = take(page, "CSV").path().read_text().splitlines()
    numbers = np.array([line.split('",', 1)[1].split(",") for line in table[1:]], float)
    rows = [row(token, "cross_weights") for token in answer["generated"]]
    np.testing.assert_allclose(numbers, rows, rtol=1e-6)
    page.get_by_role("combobox", name="look at").select_option("decoder")
    own = generate("bart", max_new_tokens=12, outputs=["weights"], **options)
    expect_row(page, row(own["generated"][10]))
    expect(matrix).to_have_attribute("aria-label", re.compile("^weights of 12 queries.* and 12 keys"))


def test_an_alternative_of_two_stacks_begins_the_decoder(open_text, generate):
    first = generate("bart")
    page = open_text("bart", token=2)
    instead = first["generated"][2]["next_tokens"][1]["id"]
    page.get_by_role("region", name="next tokens").get_by_role("button").nth(1).click()
    ids = [2, *(token["id"] for token in first["generated"][:2]), instead]  # behind the start token
    rest = generate("bart", text=TEXT, decoder_input_ids=ids, outputs=["cross_weights"], layers=0, heads=0)
    expect(page.locator(".word.new")).to_have_count(3 + 20)
    expect_end(page)
    assert shown(page)[3:] == tokens(rest)
    page.locator(".word.new").nth(8).click()
    expect_row(page, row(rest["generated"][5], "cross_weights"))


def test_a_spectrogram_is_sent_as_one_prompt(open_page):
    """Of a batch its selected row, without the axis of the batch, and the decoder begins with its ids."""
    page = open_page("model=bert")
    fields, keys = page.evaluate(
        """async () => {
          const { startOf, Generation } = await import("heed/server/generation.js");
          const { DEFAULTS } = await import("heed/data/state.js");
          const { tensor } = await import("heed/server/api.js");
          const tensors = {
            input_features: tensor("float32", [2, 2, 3], [...Array(12).keys()]),
            decoder_input_ids: tensor("int64", [2, 2], [5, 6, 7, 8]),
          };
          const outputs = [{ name: "cross_weights", shape: [1, "batch", 1, "m", 20] }];
          const input = { tensors, source: [], target: [], truncated: false };
          const start = startOf({ tokenizer: null }, { ...DEFAULTS, batch: 1 }, input);
          const token = { id: 1, token: null, text: "", probability: 1, alternatives: [], isChosen: false };
          const generation = new Generation({ outputs }, start, [token]);
          return [start.fields, generation.attention("cross_weights", 1).n];
        }"""
    )
    assert fields["input_features"] == {"shape": [2, 3], "data": [6, 7, 8, 9, 10, 11]}
    assert fields["decoder_input_ids"] == [7, 8]
    assert keys == 20
