"""How much each head changes the output: the button "measure every head", and what it shows."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.support.waiting import until
from tests.viewer.pages import percent, take

MODEL = "model=encoder&view=ablate"
RELATIVE = "‖after − before‖ / ‖before‖ of the whole output".replace(" ", "\u00a0", 4)


def off(page, layer, head):
    return page.get_by_role("button", name=f"switch off layer {layer}, head {head}")


def test_every_head_is_measured(open_page, heed):
    """The change of the output by each head alone, relative to the output, as in float64."""
    request = {**heed.describe("encoder").example, "outputs": ["output"]}
    output = heed.attend("encoder", **request, head_mask=np.ones((2, 4))).output[0].astype(float)
    page = open_page(MODEL)
    page.get_by_role("button", name="measure every head").click()
    shares = np.zeros((2, 4))
    for layer, head in np.ndindex(2, 4):
        mask = np.ones((2, 4))
        mask[layer, head] = 0
        other = heed.attend("encoder", **request, head_mask=mask).output[0].astype(float)
        shares[layer, head] = share = np.linalg.norm(other - output) / np.linalg.norm(output)
        said = f"on {100 * share:.{0 if share >= 0.0995 else 1}f}\u00a0%: switch off layer {layer}, head {head}"
        expect(page.get_by_role("button", name=said)).to_be_visible()
        switch = page.locator(f"[data-kind=switch][data-place='{layer}.{head}']")
        expect(switch).to_have_text("on")
        expect(switch.locator("+ .head-effect")).to_have_text(percent(share)[:-2].replace("\u00a0", ""))
    expect(page.locator(".heads-tools")).to_contain_text(
        "Below each head: the change of the output without it alone, in %"
    )
    expect(page.get_by_role("heading", name="Largest effects: click to switch off")).to_be_visible()
    layer, head = divmod(int(shares.argmax()), 4)
    most = percent(shares.max())
    said = f"The output moves most without layer {layer}, head {head}: {most} {most}: {RELATIVE}"
    expect(page.locator(".ablate > .headline")).to_have_text(said)
    ranked = page.get_by_role("list", name="heads by effect").get_by_role("button")
    order = [f"layer {at // 4}, head {at % 4} " for at in np.argsort(-shares, axis=None)[:5]]
    expect(ranked).to_have_text([re.compile(f"^{name}") for name in order])
    ranked.nth(1).click()
    expect(ranked.nth(1)).to_have_attribute("aria-pressed", "true")
    layer, head = divmod(int(np.argsort(-shares, axis=None)[1]), 4)
    expect(off(page, layer, head)).to_have_attribute("aria-pressed", "true")
    expect(off(page, layer, head)).to_have_text("off")
    expect(page.get_by_role("region", name="change of the output")).to_be_visible()
    table = np.array([line.split(",") for line in take(page, "CSV").path().read_text().split()])
    assert [*table[0]] == ["layer", "head", "off", "largest_change", "effect"]
    np.testing.assert_allclose(table[1:, 4].astype(float), shares.ravel(), rtol=1e-5)


@pytest.mark.parametrize("width", [390, 1440])
def test_where_no_weights_change_the_output_has_their_place(open_page, heed, width):
    """The headline has the measured effect of the head, not the change of a single token."""
    request = {**heed.describe("encoder").example, "outputs": ["output"]}
    masks = ([1] * 4, [1, 1, 0, 1])
    before, after = (heed.attend("encoder", **request, head_mask=[[1] * 4, on]).output[0].astype(float) for on in masks)
    whole = percent(np.linalg.norm(after - before) / np.linalg.norm(before))
    shares = np.linalg.norm(after - before, axis=-1) / np.linalg.norm(before, axis=-1)
    page = open_page(f"{MODEL}&layer=0&head=3", viewport={"width": width, "height": 900}, closed=True)
    page.get_by_role("button", name="measure every head").click()
    page.get_by_role("button", name=f"on {whole}: switch off layer 1, head 2").click()
    tokens = page.get_by_role("region", name="change of the output").get_by_role("listitem")
    expect(tokens).to_have_text([re.compile(rf"{percent(share)}$") for share in shares])
    most = tokens.nth(int(shares.argmax())).locator("b").inner_text()
    said = f"Without layer 1, head 2 the output changes by {whole}, most at “{most}"
    headline = page.locator(".ablate > .headline")
    expect(headline).to_contain_text(said)
    expect(headline).to_contain_text(f": {percent(shares.max())} {whole}: {RELATIVE}")
    expect(page.locator(".ablate > .note").first).to_contain_text("No weights change")
    expect(page.locator(".thumbnail canvas")).to_have_count(8)
    expect(page.locator(".thumbnail[aria-pressed=true]")).to_have_count(0)
    bar = "(token) => parseFloat(getComputedStyle(token, '::after').width)"
    widths = np.array([token.evaluate(bar) for token in tokens.all()])
    np.testing.assert_allclose(widths / widths.max(), shares / shares.max(), atol=0.02)
    grid = page.locator(".grid-of-heads").bounding_box()
    first, last = tokens.first.bounding_box(), tokens.last.bounding_box()
    if width == 390:
        assert first["y"] > grid["y"] + grid["height"]
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    else:
        assert first["x"] > grid["x"] + grid["width"]
        assert last["y"] + last["height"] < 900


def test_effects_are_shown_as_they_arrive_and_move_nothing(open_page):
    page = open_page(f"{MODEL}&ablated=[[0,1]]", viewport={"width": 1440, "height": 900})
    maps, numbers = page.locator(".results .sides"), page.locator(".head-effect")
    canvases = maps.locator(".heat-map canvas:first-child")
    until(lambda: canvases.count() == 3 and min(one.bounding_box()["height"] for one in canvases.all()) > 150)  # drawn
    place = maps.bounding_box()
    answered, waiting = 1, []

    def answer(route):
        nonlocal answered
        answered -= 1
        if answered >= 0:
            route.continue_()
        else:
            waiting.append(route)

    page.route("**/infer", answer)
    page.get_by_role("button", name="measure every head").click()
    expect(page.locator(".heads-tools")).to_contain_text("1 of 8 heads measured")
    expect(numbers.filter(has_text=re.compile("[0-9]"))).to_have_count(1)
    expect(off(page, 0, 1)).to_have_text("off")
    expect(page.locator(".effects")).to_have_count(0)
    answered = 8
    for route in waiting:
        route.continue_()
    grid, effects = (page.locator(name) for name in (".grid-of-heads", ".effects"))
    expect(effects).to_be_visible()
    assert maps.bounding_box() == place
    assert effects.bounding_box()["y"] >= grid.bounding_box()["y"] + grid.bounding_box()["height"]


def test_the_head_of_the_largest_effect_is_opened_unless_another_was_chosen(open_page):
    page = open_page(MODEL)
    head = page.get_by_role("region", name="large head").get_by_role("heading")
    measure = page.get_by_role("button", name="measure every head")
    measure.click()
    most = page.locator(".ablate > .headline").get_by_text(re.compile("most without"))
    expect(most).to_be_visible()
    name = re.search(r"layer \d, head \d", most.inner_text())[0]
    expect(head).to_contain_text(name)
    expect(page.locator("[aria-pressed=true]")).to_have_attribute("aria-label", name)
    off(page, 0, 1).click()
    expect(page.locator(".ablate > .headline")).to_contain_text("changes most")
    changed = page.locator(".ablate > .headline").inner_text().split(" changes")[0]
    expect(page.get_by_role("heading", name=f"{changed}: change")).to_be_visible()  # not of the head that was opened
    page.get_by_role("button", name="switch all on").click()
    expect(head).to_contain_text(name)
    page.locator("[data-kind=change][data-place='0.2']").click()
    expect(head).to_contain_text("layer 0, head 2")
    measure.click()
    expect(most).to_be_visible()
    expect(head).to_contain_text("layer 0, head 2")
