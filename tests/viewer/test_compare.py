"""Two sides: heads, texts, options, models; and the difference between them."""

import numpy as np
from playwright.sync_api import expect

from heed_client.client import Client


def test_two_heads(open_page, viewer):
    page = open_page("model=bert&text=the+cat+sat&view=compare&head=0&query=1&key=2")
    page.get_by_role("combobox", name="second head").select_option("3")
    with Client(str(viewer.base_url)) as heed:
        weights = heed.attend("bert", text="the cat sat").weights[0, :, 1, 2]
    first = page.locator(".workspace > .selection .value").first
    second = page.get_by_role("region", name="second").locator(".selection .value").first
    expect(first).to_have_text(f"{weights[0]:.4f}")
    expect(second).to_have_text(f"{weights[3]:.4f}")
    assert np.ptp(weights[[0, 3]]) > 1e-3
    expect(page.get_by_role("region", name="difference").locator("canvas").first).to_be_visible()


def test_two_texts_of_different_lengths(open_page):
    page = open_page("model=bert&text=the+cat+sat&view=compare")
    page.get_by_text("another text, model or option").click()
    second = page.get_by_role("region", name="second")
    second.get_by_role("textbox", name="text", exact=True).fill("the cat sat on the mat")
    expect(page.get_by_role("region", name="difference")).to_contain_text("No difference is drawn: the first has 5 x 5")
    second.get_by_role("textbox", name="text", exact=True).fill("the dog ran")
    expect(page.get_by_role("region", name="difference").locator("canvas").first).to_be_visible()
