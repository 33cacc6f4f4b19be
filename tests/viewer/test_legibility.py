"""What is drawn of the weights: the numbers follow the settings, and so do the colours."""

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


def test_sorting(open_page, weights):
    page = open_page(PAGE.replace("view=matrix", "view=model"))
    page.get_by_role("combobox", name="sort by").select_option("share on the first token")
    first = weights[:, :, 0].mean(-1)
    expected = [f"head {head}, {first[head]:.3f}" for head in np.argsort(-first)]
    for place, name in enumerate(expected):
        expect(page.locator(".thumbnail").nth(place)).to_have_attribute("aria-label", name)
