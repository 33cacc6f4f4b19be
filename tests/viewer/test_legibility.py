"""What is drawn of the weights: the numbers follow the settings, and so do the colours."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.support.waiting import until
from tests.viewer.pages import choose, display, expect_value, number, percent, pixels

TEXT = "the animal did not cross the street"
PAGE = "model=bert&text=" + TEXT.replace(" ", "+") + "&head=2&query=2"
MATRIX = PAGE + "&view=matrix&key=5"


@pytest.fixture(scope="module")
def weights(heed):
    """[heads, n, n] of the sentence."""
    return heed.attend("bert", text=TEXT).weights[0]


def test_numbers_follow_hidden_tokens_renormalisation_and_combinations(open_page, weights):
    page = open_page(MATRIX)
    row = weights[2, 2].astype(np.float64)
    expect_value(page, row[5])
    display(page).get_by_role("checkbox", name="hide special tokens").check()
    expect_value(page, row[5])
    expect(page.locator(".selection")).not_to_contain_text("<s>")
    display(page).get_by_role("checkbox", name="renormalise").check()
    expect_value(page, row[5] / row[1:-1].sum())
    display(page).get_by_role("checkbox", name="hide special tokens").uncheck()
    display(page).get_by_role("checkbox", name="hide first token").check()
    expect_value(page, row[5] / row[1:].sum())
    page.get_by_role("combobox", name="head", exact=True).focus()
    expect(page).to_have_url(re.compile("hideFirst=true"))
    page.reload()
    expect_value(page, row[5] / row[1:].sum())
    display(page).get_by_role("checkbox", name="hide first token").uncheck()
    display(page).get_by_role("checkbox", name="renormalise").uncheck()
    choice = page.get_by_role("combobox", name="show")
    choice.select_option("mean of heads")
    expect_value(page, weights[:, 2, 5].mean(dtype=np.float64))
    choice.select_option("max. of heads")
    expect_value(page, weights[:, 2, 5].max())


def test_rollout_and_other_outputs(open_page, heed):
    page = open_page("model=encoder&view=matrix&query=1&key=0&combine=rollout")
    example = heed.describe("encoder").example
    answer = heed.attend("encoder", **{**example, "outputs": ["rollout", "scores"]})
    expect_value(page, answer.rollout.reshape(-1, *answer.rollout.shape[-2:])[0, 1, 0])
    page.goto(page.url.partition("#")[0] + "#model=encoder&view=matrix&query=1&key=0&kind=scores&layer=1&head=2")
    expect_value(page, answer.scores.reshape(answer.scores.shape[0], -1, *answer.scores.shape[-2:])[1, 2, 1, 0])


def colours(page):
    """The colours of the first head's picture, cell by cell."""
    page.wait_for_function("() => document.querySelector('.thumbnail canvas')?.width > 1")
    return pixels(page, ".thumbnail canvas").reshape(-1, 4).astype(int)


def test_colours_follow_scale_threshold_range_and_palette(open_page, weights):
    page = open_page(PAGE + "&view=model&palette=greys")
    first = weights[0].ravel()
    linear = colours(page)[:, 0]
    assert (np.diff(linear[np.argsort(first)]) <= 0).all()  # darker for larger weights
    assert linear[first.argmax()] == 0
    scale, full = (page.get_by_role("combobox", name=name) for name in ("scale", "colour range"))
    threshold = page.get_by_role("spinbutton", name="threshold")
    scale.select_option("logarithmic")
    until(lambda: colours(page)[:, 0].mean() < linear.mean())
    scale.select_option("linear")
    threshold.fill("0.15")
    threshold.press("Enter")
    until(lambda: (colours(page)[:, 0] == np.where(first < 0.15, 255, linear)).all())
    threshold.fill("0")
    threshold.press("Enter")
    full.select_option("all heads")
    until(lambda: (colours(page)[:, 0].min() > 0) == (first.max() < 0.99 * weights.max()))
    full.select_option("each row")
    largest = weights[0].argmax(-1)
    until(lambda: not colours(page)[:, 0].reshape(weights[0].shape)[np.arange(len(largest)), largest].any())
    display(page).get_by_role("combobox", name="palette").select_option("viridis")
    until(lambda: tuple(colours(page)[first.argmax(), :3]) == (253, 231, 37))


def thumbnails(page):
    """Layer and head -> the number of each thumbnail, in the order in which they are shown."""
    labels = [one.get_attribute("aria-label") for one in page.locator(".thumbnail").all()]
    return {
        tuple(map(int, re.findall(r"\d+", label.split(": ")[1].split(", 0.")[0]))): float(label.split()[-1])
        for label in labels
    }


@pytest.mark.parametrize(
    ("settings", "place"), [("sort=first", 0), ("sort=first&hideSpecial=true", 1), ("sort=held&hideSpecial=true", 3)]
)
def test_sorting_counts_what_is_visible(open_page, weights, settings, place):
    page = open_page(f"{PAGE}&view=model&key=3&{settings}")
    visible = np.s_[1:-1] if "hide" in settings else np.s_[:]
    shown = weights[:, visible, visible].astype(np.float64)
    shares = (shown / shown.sum(-1, keepdims=True))[:, :, place - (visible.start or 0)].mean(-1)
    expect(page.locator(".thumbnail b").first).to_have_text(f"{shares.max():.2f}")
    assert list(thumbnails(page)) == [(head,) for head in np.argsort(-shares)]
    assert list(thumbnails(page).values()) == pytest.approx(sorted(shares, reverse=True), abs=6e-4)
    expect(page.locator("#view")).not_to_contain_text("hidden tokens count")


def test_of_long_inputs_the_server_sorts_and_counts_all_tokens(open_page, heed, tmp_path):
    ids = np.random.default_rng(0).integers(heed.describe("encoder").config["vocab_size"], size=(1, 80))
    received = heed.attend("encoder", input_ids=ids, outputs=["received"]).received[:, 0, :, 7]
    np.save(tmp_path / "input_ids.npy", ids)
    page = open_page("model=encoder&view=model&sort=held&query=7&hideFirst=true")
    choose(page, tmp_path / "input_ids.npy")
    expect(page.locator("#view")).to_contain_text("includes hidden tokens")
    expect(page.get_by_role("combobox", name="sort by")).to_contain_text("share on “7”, which is pinned")
    expect(page.locator(".thumbnail b").first).to_have_text(f"{received.max():.2f}")
    shown = thumbnails(page)
    assert list(shown.values()) == pytest.approx(sorted(received.ravel(), reverse=True), abs=6e-4)
    assert next(iter(shown)) == np.unravel_index(received.argmax(), received.shape)


def test_the_legend_of_a_logarithmic_scale_has_powers_of_ten(open_page, weights):
    page = open_page(MATRIX + "&scale=log")
    legend = page.locator(".legend")
    expect(legend.locator("small").first).to_be_visible()
    top = weights[2].max()
    ticks = {
        one.inner_text(): float(one.evaluate("(one) => one.style.left").rstrip("%"))
        for one in legend.locator("small").all()
    }
    powers = {text: left for text, left in ticks.items() if 0 < left < 100}
    shares = {text.removesuffix("\u00a0%"): left for text, left in powers.items()}
    assert {"1", "0.1"} <= set(shares) <= {"10", "1", "0.1", "0.01", "0.001"}
    for share, left in shares.items():
        assert left == pytest.approx(100 * (1 + np.log10(number(share) / 100 / top) / 4), abs=0.1)
    page.get_by_role("combobox", name="scale").select_option("square root")
    expect(legend).to_have_attribute("aria-label", f"colours from 0 to {percent(top)}, sqrt scale")
    assert percent(top / 4) in legend.inner_text()


def test_only_controls_that_have_an_effect_are_shown(open_page):
    page = open_page(MATRIX)
    common = ["scale", "colour range", "threshold", "hide special tokens", "hide first token", "renormalise"]
    controls = {
        "Matrix": ["head", "show", "palette", *common],
        "Head": ["head", "show", *common],
        "Model": ["sort by", "palette", *common],
    }
    for view, names in controls.items():
        page.get_by_role("tab", name=view).click()
        expect(page.get_by_role("group", name="what is drawn")).to_have_count(int("head" in names))
        labels = page.locator(".workspace > .tools label, #display label").evaluate_all(
            """(labels) => labels.map((label) =>
              [...label.childNodes].filter((part) => part instanceof Text).map(({ data }) => data).join("").trim())"""
        )
        assert sorted(labels) == sorted(names)


def test_the_display_is_closed_at_first_and_stays_as_it_is_left(open_page):
    page = open_page(MATRIX + "&scale=log", closed=True, viewport={"width": 1280, "height": 900})
    button = page.get_by_role("button", name="Display (1 changed)")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(page.get_by_role("combobox", name="scale")).to_have_count(0)
    button.click()
    page.reload()
    expect(page.get_by_role("combobox", name="scale")).to_have_value("log")


def test_a_text_suits_its_colour_over_the_page(open_page):
    page = open_page("model=bert")
    said = page.evaluate(
        """async () => {
          const { picturePalette, textOn } = await import("heed/data/palettes.js");
          const table = picturePalette("auto", false, true);
          return [[1, true], [0.5, true], [0.5, false]].map((over) => textOn(table, 0.5, ...over));
        }"""
    )
    assert said == ["#000", "#fff", "#000"]


def test_a_share_is_all_or_nothing_only_if_nothing_is_left(open_page):
    page = open_page("model=bert")
    said = page.evaluate(
        """async () => {
          const { percent } = await import("heed/data/display.js");
          return [0, 1e-5, 0.004, 0.5, 0.994, 0.996, 0.99996, 1 - 1e-8, 1].map((share) => percent(share));
        }"""
    )
    texts = ["0.0", "<\u00a00.1", "0.4", "50", "99", "99.6", ">\u00a099.9", "100", "100"]
    assert said == [f"{text}\u00a0%" for text in texts]
