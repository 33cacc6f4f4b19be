"""What is drawn of the weights: the numbers follow the settings, and so do the colours."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from heed_client.client import Client
from tests.viewer.pages import more

TEXT = "the animal did not cross the street"
PAGE = "model=bert&text=" + TEXT.replace(" ", "+") + "&view=matrix&head=2&query=2&key=5"


@pytest.fixture(scope="module")
def weights(viewer):
    """[heads, n, n] of the sentence."""
    with Client(str(viewer.base_url)) as heed:
        return heed.attend("bert", text=TEXT).weights[0]


def shown(page, expected):
    expect(page.locator(".selection .value").first).to_have_text(f"{expected:.4f}")


def test_hidden_tokens_and_renormalised_rows(open_page, weights):
    page = open_page(PAGE)
    row = weights[2, 2].astype(np.float64)
    shown(page, row[5])
    more(page).get_by_role("checkbox", name="hide special tokens").check()
    shown(page, row[5])
    expect(page.locator(".selection")).not_to_contain_text("<s>")
    more(page).get_by_role("checkbox", name="renormalise").check()
    shown(page, row[5] / row[1:-1].sum())
    more(page).get_by_role("checkbox", name="hide special tokens").uncheck()
    more(page).get_by_role("checkbox", name="hide first token").check()
    shown(page, row[5] / row[1:].sum())
    page.get_by_role("combobox", name="head", exact=True).focus()
    assert "hideFirst=true" in page.url
    page.reload()
    shown(page, row[5] / row[1:].sum())


def test_combinations(open_page, weights):
    page = open_page(PAGE)
    choice = page.get_by_role("combobox", name="show")
    choice.select_option("mean of heads")
    shown(page, weights[:, 2, 5].mean(dtype=np.float64))
    choice.select_option("max. of heads")
    shown(page, weights[:, 2, 5].max())


def test_rollout_and_other_outputs(open_page, viewer):
    page = open_page("model=encoder&view=matrix&query=1&key=0&combine=rollout")
    with Client(str(viewer.base_url)) as heed:
        example = heed.describe("encoder").example
        answer = heed.attend("encoder", **{**example, "outputs": ["rollout", "scores"]})
    shown(page, answer.rollout.reshape(-1, *answer.rollout.shape[-2:])[0, 1, 0])
    page.goto(page.url.partition("#")[0] + "#model=encoder&view=matrix&query=1&key=0&kind=scores&layer=1&head=2")
    scores = answer.scores.reshape(answer.scores.shape[0], -1, *answer.scores.shape[-2:])
    shown(page, scores[1, 2, 1, 0])


def colours(page):
    """The colours of the first head's picture, cell by cell."""
    page.wait_for_function("() => document.querySelector('.thumbnail canvas')?.width > 1")
    return np.array(
        page.evaluate("""() => {
          const canvas = document.querySelector(".thumbnail canvas");
          return [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
        }""")
    ).reshape(-1, 4)


def test_colours_follow_scale_threshold_and_palette(open_page, weights):
    page = open_page(PAGE.replace("view=matrix", "view=model&palette=greys"), expected="willReadFrequently")
    flat = weights[0].ravel()
    linear = colours(page)[:, 0].astype(int)
    order = np.argsort(flat)
    assert (np.diff(linear[order]) <= 0).all()  # darker for larger weights
    assert linear[flat.argmax()] == 0
    page.get_by_role("combobox", name="scale").select_option("logarithmic")
    page.wait_for_timeout(100)
    assert colours(page)[:, 0].mean() < linear.mean()
    page.get_by_role("combobox", name="scale").select_option("linear")
    more(page).get_by_role("spinbutton", name="threshold").fill("0.15")
    more(page).get_by_role("spinbutton", name="threshold").press("Enter")
    page.wait_for_timeout(100)
    cut = colours(page)[:, 0].astype(int)
    assert (cut[flat < 0.15] == 255).all()
    assert (cut[flat >= 0.15] == linear[flat >= 0.15]).all()
    more(page).get_by_role("combobox", name="palette").select_option("viridis")
    page.wait_for_timeout(100)
    first = colours(page)[flat.argmax()]
    assert tuple(first[:3]) == (253, 231, 37)


def test_the_range_of_all_heads(open_page, weights):
    page = open_page(
        PAGE.replace("view=matrix", "view=model&palette=greys&range=global"), expected="willReadFrequently"
    )
    levels = 1 - colours(page)[:, 0] / 255
    assert levels.max() < 0.999 or weights[0].max() == weights.max()
    page.get_by_role("combobox", name="full colour").select_option("each row")
    page.wait_for_timeout(100)
    rows = colours(page)[:, 0].reshape(weights[0].shape)
    assert (rows[np.arange(len(rows)), weights[0].argmax(-1)] == 0).all()


def thumbnails(page):
    """The numbers of the heads, in the order in which they are shown."""
    labels = [one.get_attribute("aria-label") for one in page.locator(".thumbnail").all()]
    return {tuple(map(int, re.findall(r"\d+", label.split(", 0.")[0]))): float(label.split()[-1]) for label in labels}


@pytest.mark.parametrize(("sort", "place"), [("first", 1), ("held", 3)])
def test_sorting_counts_what_is_visible(open_page, weights, sort, place):
    page = open_page(
        PAGE.replace("view=matrix", f"view=model&sort={sort}&hideSpecial=true").replace("&key=5", "&key=3")
    )
    visible = weights[:, 1:-1, 1:-1].astype(np.float64)
    shares = (visible / visible.sum(-1, keepdims=True))[:, :, place - 1].mean(-1)
    expect(page.locator(".thumbnail b").first).to_have_text(f"{shares.max():.2f}")
    found = thumbnails(page)
    assert list(found) == [(head,) for head in np.argsort(-shares)]
    assert list(found.values()) == pytest.approx(sorted(shares, reverse=True), abs=6e-4)
    expect(page.locator("#view")).not_to_contain_text("hidden tokens count")


def test_of_long_inputs_the_server_sorts_and_counts_all_tokens(open_page, viewer, tmp_path):
    with Client(str(viewer.base_url)) as heed:
        ids = np.random.default_rng(0).integers(heed.describe("encoder").config["vocab_size"], size=(1, 80))
        received = heed.attend("encoder", input_ids=ids, outputs=["received"]).received[:, 0, :, 7]
    np.save(tmp_path / "input_ids.npy", ids)
    page = open_page("model=encoder&view=model&sort=held&query=7&hideFirst=true")
    page.get_by_role("radio", name="file or JSON").check()
    page.get_by_label("files", exact=True).set_input_files(tmp_path / "input_ids.npy")
    expect(page.locator("#view")).to_contain_text("hidden tokens count, too")
    expect(page.get_by_role("combobox", name="sort by")).to_contain_text("share on “7”, which is held")
    expect(page.locator(".thumbnail b").first).to_have_text(f"{received.max():.2f}")
    found = thumbnails(page)
    assert list(found.values()) == pytest.approx(sorted(received.ravel(), reverse=True), abs=6e-4)
    assert next(iter(found)) == np.unravel_index(received.argmax(), received.shape)


def test_the_legend_of_a_logarithmic_scale_has_powers_of_ten(open_page, weights):
    page = open_page(PAGE + "&scale=log")
    legend = page.locator(".legend")
    expect(legend.locator("small").first).to_be_visible()
    top = weights[2].max()
    ticks = {
        one.inner_text(): float(one.evaluate("(one) => one.style.left").rstrip("%"))
        for one in legend.locator("small").all()
    }
    powers = {text: left for text, left in ticks.items() if 0 < left < 100}
    assert {"0.01", "0.001"} <= set(powers) <= {"0.1", "0.01", "0.001", "1e-4", "1e-5"}
    for text, left in powers.items():
        assert left == pytest.approx(100 * (1 + np.log10(float(text) / top) / 4), abs=0.1)
    page.get_by_role("combobox", name="scale").select_option("square root")
    expect(legend).to_have_attribute("aria-label", f"colours from 0 to {float(f'{top:.3g}'):g}, sqrt scale")
    assert f"{float(f'{top / 4:.3g}'):g}" in legend.inner_text()


def test_only_controls_that_have_an_effect_are_shown(open_page):
    page = open_page(PAGE)
    group = page.get_by_role("group", name="how it is drawn")
    common = ["scale", "full colour", "threshold", "hide special tokens", "hide first token", "renormalise"]
    shown = {
        "Matrix": ["head", "show", "palette", *common],
        "Head": ["head", "show", *common],
        "Model": ["palette", *common],
    }
    for view, names in shown.items():
        page.get_by_role("tab", name=view).click()
        assert group.bounding_box()["height"] < 40  # one row
        more(page)
        found = group.locator("label").evaluate_all(
            """(labels) => labels.map((label) =>
              [...label.childNodes].filter((part) => part instanceof Text).map(({ data }) => data).join("").trim())"""
        )
        assert sorted(found) == sorted(names)
    page.keyboard.press("Escape")
    expect(page.locator(".more .menu")).to_be_hidden()


def test_sorting(open_page, weights):
    page = open_page(PAGE.replace("view=matrix", "view=model"))
    page.get_by_role("combobox", name="sort by").select_option("share on the first token")
    first = weights[:, :, 0].mean(-1)
    expected = [f"head {head}, {first[head]:.3f}" for head in np.argsort(-first)]
    for place, name in enumerate(expected):
        expect(page.locator(".thumbnail").nth(place)).to_have_attribute("aria-label", name)
