"""A model with a tower for texts and one for images: the page looks at either."""

import io

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from heed_client import Client
from tests.viewer.pages import drag, fragment, percent

VALUES = np.random.default_rng(5).integers(0, 256, (16, 16, 3), np.uint8)  # of a picture


@pytest.fixture(scope="module")
def server(towers, shared_server):
    """The URL of a server of a small CLIP, ``mine``."""
    return shared_server(towers("clip") / "models").url


def test_it_opens_on_its_text_and_looks_at_its_picture(open_page, server):
    page = open_page("model=mine&text=the+cat+sat&head=0", url=server)
    tabs = page.get_by_role("tab")
    expect(page.locator("#view canvas").first).to_be_visible()
    assert "Picture" not in tabs.all_inner_texts()
    assert "Patch" not in tabs.all_inner_texts()
    page.get_by_role("combobox", name="look at").select_option("images")
    expect(page.get_by_role("tab", name="Picture")).to_have_attribute("aria-selected", "true")
    Image.fromarray(VALUES).save(file := io.BytesIO(), "PNG")
    drag(page, ["drop"], "noise.png", file.getvalue(), "image/png")
    expect(page.get_by_role("region", name="input")).to_contain_text("noise.png")
    with Client(server) as heed:
        weights = heed.attend("mine", images=file.getvalue(), outputs=["vision_weights"]).vision_weights
    expect(page.locator(".selection")).to_contain_text(percent(np.asarray(weights)[0, 0, 0, 0].max()))
    assert "kind=vision_weights" in fragment(page)
    page.get_by_role("combobox", name="look at").select_option("texts")
    expect(page.get_by_role("tab", name="Model")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("textbox", name="text", exact=True)).to_have_value("the cat sat")


def test_the_effect_of_a_head_is_that_on_the_embedding_of_its_tower(open_page, server):
    """That of a picture is shown, that of a text compared."""
    body = {"text": "the cat sat", "outputs": ["text_embedding"]}
    with Client(server) as heed:
        whole, other = (
            np.asarray(heed.attend("mine", **body, **mask).text_embedding)
            for mask in ({}, {"head_mask": np.array([[1, 0, 1, 1], [1, 1, 1, 1]], np.float32)})
        )
    share = 100 * np.linalg.norm(other - whole) / np.linalg.norm(whole)
    for kind, said in (
        ("weights", f"on {share:.0f}\u00a0%: switch off layer 0, head 1"),
        ("vision_weights", "%: switch off"),
    ):
        page = open_page(f"model=mine&text=the+cat+sat&kind={kind}&view=ablate", url=server)
        page.get_by_role("button", name="measure every head").click()
        expect(page.get_by_role("button", name=said).first).to_be_visible()
