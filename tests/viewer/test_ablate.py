"""The view Ablate: heads are switched off, and what changes is compared with the server's own answers."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.support.language_model import LOGITS, VOCABULARY, write_language_model
from tests.support.server import serving
from tests.support.texts import SPECIAL, WORDS

MODEL = "model=encoder&view=ablate"


@pytest.fixture(scope="module")
def answers(viewer):
    """Weights [layers, heads, n, n] and output [n, d] of the whole model, and of it without head 1 of layer 0."""
    example = viewer.get("/v1/attention/encoder").json()["example"]

    def answer(mask):
        request = {**example, "outputs": ["weights", "output"], "head_mask": mask}
        found = viewer.post("/v1/attention/encoder", json=request).json()
        weights, output = np.array(found["weights"]), np.array(found["output"])
        return weights.reshape(2, 4, *weights.shape[-2:]), output.reshape(output.shape[-2:])

    return answer([[1] * 4] * 2), answer([[1, 0, 1, 1], [1] * 4])


def off(page, layer, head):
    return page.get_by_role("button", name=f"switch off layer {layer}, head {head}")


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def test_what_a_head_changes(open_page, answers):
    (before, output), (after, other) = answers
    page = open_page(f"{MODEL}&layer=1")
    off(page, 0, 1).click()
    expect(off(page, 0, 1)).to_have_attribute("aria-pressed", "true")
    change = np.abs(after - before).max((-1, -2))
    table = page.get_by_role("table")
    expect(table).to_contain_text(
        f"1 of 8 heads are off; the weights of the others change by at most {change[1].max():.4f}"
    )
    for layer in range(2):
        for head in range(4):
            name = f"layer {layer}, head {head}: changes by at most {change[layer, head]:.4f}"
            expect(page.get_by_role("button", name=name)).to_be_visible()
    chips = page.get_by_role("region", name="change of the output").get_by_role("listitem")
    expect(chips).to_have_count(len(output))
    for chip, one, two in zip(chips.all(), output, other, strict=True):
        cosine = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
        assert numbers(chip.inner_text()) == pytest.approx([cosine, np.abs(one - two).max()], abs=6e-5)
    assert "ablated=%5B%5B0%2C1%5D%5D" in page.url


def test_the_pictures_of_a_head(open_page, answers):
    """Blues of the first two pictures are darker where a weight is larger; the third diverges where it changed most."""
    (before, _), (after, _) = answers
    page = open_page(f"{MODEL}&ablated=[[0,1]]&layer=1&head=0")
    figures = page.get_by_role("region", name="selected head").locator("canvas")
    expect(figures).to_have_count(3)
    expect(page.get_by_role("region", name="selected head")).to_contain_text(
        f"{np.abs(after - before)[1, 0].max():.4f}"
    )
    drawn = [
        np.array(canvas.evaluate("c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]")).reshape(
            *before.shape[-2:], 4
        )
        for canvas in figures.all()
    ]
    for pixels, weights in zip(drawn, (before[1, 0], after[1, 0]), strict=False):
        red = pixels[..., 0].astype(float).ravel()
        assert np.corrcoef(red, weights.ravel())[0, 1] < -0.9
    change = (after - before)[1, 0]
    tint = drawn[2][..., 0] - drawn[2][..., 2]  # orange = more, purple = less
    assert (tint[change > change.max() / 2] > 0).all()
    assert (tint[change < change.min() / 2] < 0).all()


def test_with_the_keyboard_and_by_layer(open_page):
    page = open_page(MODEL)
    off(page, 0, 0).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(off(page, 1, 1)).to_be_focused()
    page.keyboard.press("Space")
    expect(off(page, 1, 1)).to_have_attribute("aria-pressed", "true")
    expect(off(page, 1, 1)).to_be_focused()
    page.get_by_role("button", name="layer 0: all off").click()
    expect(page.get_by_role("table")).to_contain_text("5 of 8 heads are off")
    page.get_by_role("button", name="layer 1: all on").click()
    expect(page.get_by_role("table")).to_contain_text("4 of 8 heads are off")
    expect(off(page, 1, 1)).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name="switch all on").click()
    expect(page.get_by_role("table")).to_contain_text("0 of 8 heads are off")


def test_only_answers_of_the_same_heads_are_compared(open_page):
    page = open_page(f"{MODEL}&ablated=[[0,1]]")
    table = page.get_by_role("table")
    expect(table).to_contain_text("change by at most")
    chips = page.get_by_role("region", name="change of the output")
    expect(chips).to_be_visible()
    page.route("**/infer", lambda _: None)  # never answered
    off(page, 0, 2).click()
    off(page, 0, 3).click()
    expect(table).to_contain_text("3 of 8 heads are off")
    expect(table).not_to_contain_text("change by at most")
    expect(chips).to_be_hidden()


def test_a_block_of_one_layer(open_page):
    page = open_page("model=multi_head&view=ablate")
    for head in range(8):
        off(page, 0, head).click()
    expect(page.get_by_role("table")).to_contain_text("8 of 8 heads are off")
    chips = page.get_by_role("region", name="change of the output").get_by_role("listitem")
    expect(chips.first).not_to_contain_text("0.0000")


def test_a_model_without_a_head_mask_has_no_such_view(open_page):
    page = open_page("model=additive&view=ablate")
    expect(page.get_by_role("tab", name="Steps")).to_be_visible()
    expect(page.get_by_role("tab", name="Ablate")).to_have_count(0)


def test_the_next_tokens_of_a_language_model(open_page, tmp_path):
    """Without its head, the logits of the model are 0: all tokens are alike."""
    write_language_model(tmp_path / "words" / "1")
    tokens = [*SPECIAL, *WORDS]
    with serving(tmp_path) as client:
        page = open_page("model=words&text=the+cat&view=ablate", url=str(client.base_url).rstrip("/"))
        off(page, 0, 0).click()
        rows = page.get_by_role("region", name="next tokens").locator("tbody tr")
        expect(rows.last.locator("td").nth(1)).to_have_text(f"{1 / VOCABULARY:.4f}")
        ids = client.post("/v1/tokenize/words", json={"text": "the cat"}).json()["input_ids"]
        powers = np.exp(LOGITS[ids[-1]].astype(np.float64))
        chances = powers / powers.sum()
        likely = np.argsort(-chances)[:10]
        for row, index in zip(rows.all()[:10], likely, strict=True):
            expect(row.get_by_role("rowheader")).to_have_text(tokens[index] if index < len(tokens) else str(index))
            assert numbers(row.locator("td").first.inner_text()) == pytest.approx([chances[index]], abs=6e-5)
        widths = [row.locator(".chance").first.bounding_box()["width"] for row in rows.all()[:10]]
        np.testing.assert_allclose(np.array(widths) / widths[0], chances[likely] / chances[likely[0]], atol=0.02)
        expect(rows.last.locator("td").first).to_have_text(f"< {chances[likely[-1]]:.4f}")
