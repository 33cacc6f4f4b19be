"""The first thing that one sees, without a keystroke, and where the page's files come from."""

import numpy as np
import pytest
from playwright.sync_api import expect

from heed_client.client import Client
from tests.support.server import serving
from tests.viewer.pages import more


def test_it_opens_on_a_sentence_that_is_drawn(open_page):
    page = open_page()
    expect(page.locator(".selection")).to_contain_text("“it” (10) looks at “animal” (2)")
    expect(page.get_by_role("combobox", name="model")).to_have_value("scaled_dot_product")


def test_a_sentence_of_ones_own(open_page):
    page = open_page("model=bert&text=the+cat+sat")
    expect(page.locator(".thumbnail")).to_have_count(4)
    page.get_by_role("textbox", name="text", exact=True).fill("the cat sat on the mat")
    page.locator(".thumbnail").nth(1).click()
    expect(page.get_by_role("tab", name="Head")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tabpanel")).to_contain_text("mat")


def test_the_sentence_is_in_the_link(open_page):
    page = open_page()
    expect(page.locator(".selection")).to_contain_text("“it” (10) looks at “animal” (2)")
    page.reload()
    expect(page.locator(".selection")).to_contain_text("“it” (10) looks at “animal” (2)")
    more(page).get_by_role("checkbox", name="hide special tokens").check()
    expect(page.locator(".selection")).not_to_contain_text("[CLS]")


@pytest.mark.parametrize(
    "fragment",
    [
        "layer=-1&head=-1&query=-1&key=99&batch=7",
        "layer=99&head=1e9&query=4.5&heads=[99,-1]&ablated=[[5,5],[1]]",
        "view=nothing&scale=nothing&range=nothing&palette=nothing&sort=nothing&combine=nothing&direction=nothing",
        "view=matrix&threshold=-5&parameters=[]&other={%22layer%22:%22x%22,%22text%22:5}&words=[1]",
        "view=compare&other={%22head%22:99}",
        "view=ablate&random={%22seed%22:-1}&no-such=1&%00=%00",
        "view=head&kind=weights&query=99&combine=rollout",
    ],
)
def test_a_broken_link_is_no_broken_page(open_page, fragment):
    page = open_page(f"model=bert&text=the+cat&{fragment}")
    expect(page.get_by_role("tab", selected=True)).to_have_count(1)
    expect(page.locator("#view canvas, #view [role=option], #view .chip").first).to_be_visible()


def test_half_precision(open_page, halves):
    with serving(halves) as client, Client(str(client.base_url)) as heed:
        for name in ("attention_float16", "efficient_bfloat16"):
            page = open_page(f"model={name}&view=matrix&query=0&key=1", url=str(client.base_url).rstrip("/"))
            example = {**heed.describe(name).example, "outputs": ["weights"]}
            weights = np.asarray(heed.attend(name, **example).weights, np.float32)
            expect(page.locator(".selection .value").first).to_have_text(
                f"{weights.reshape(-1, *weights.shape[-2:])[0, 0, 1]:.4f}"
            )
