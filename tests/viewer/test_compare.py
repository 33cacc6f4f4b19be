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


def test_a_second_side_without_an_answer_shows_nothing(open_page):
    page = open_page("model=bert&text=the+cat+sat&view=compare&other={%22text%22:%22%22}")
    second = page.get_by_role("region", name="second")
    difference = page.get_by_role("region", name="difference")
    expect(second).to_contain_text("Type a text")
    expect(second.locator("canvas")).to_have_count(0)
    expect(difference.locator("canvas")).to_have_count(0)
    box = second.get_by_role("textbox", name="text", exact=True)
    box.fill("the dog ran")
    expect(difference.locator("canvas").first).to_be_visible()
    page.route("**/v1/tokenize/**", lambda _: None)  # never answered
    box.fill("the mat")
    expect(second.locator("canvas")).to_have_count(0)
    expect(difference.locator("canvas")).to_have_count(0)
    expect(box).to_be_visible()


def test_a_second_head_that_is_not_there(open_page):
    page = open_page("model=bert&text=the+cat+sat&view=compare&other={%22head%22:99,%22layer%22:99}")
    expect(page.get_by_role("combobox", name="second head")).to_have_value("3")
    expect(page.get_by_role("region", name="difference").locator("canvas").first).to_be_visible()


def test_tensors_of_the_first_model_are_not_those_of_another(open_page):
    page = open_page("model=scaled_dot_product&view=compare")
    page.get_by_role("radio", name="file or JSON").check()
    page.get_by_role("textbox", name="JSON").fill('{"query": [[1, 2]], "key": [[1, 2], [3, 4]]}')
    second = page.get_by_role("region", name="second")
    page.get_by_text("another text, model or option").click()
    expect(second.get_by_role("radio", name="file or JSON")).to_be_checked()
    second.get_by_role("combobox", name="second model").select_option("additive")
    expect(second.get_by_role("radio", name="example")).to_be_checked()
    expect(second.locator("canvas").first).to_be_visible()


def test_both_sides_have_one_scale_and_one_layout(open_page, viewer):
    page = open_page("model=bert&text=the+cat+sat&view=compare&head=0&other={%22head%22:3}", width=1280)
    with Client(str(viewer.base_url)) as heed:
        weights = heed.attend("bert", text="the cat sat").weights[0, [0, 3]]
    legends = page.locator(".sides .legend")
    expect(legends).to_have_count(3)
    top = f"{float(f'{weights.max():.3g}'):g}"
    for number in (0, 1):
        expect(legends.nth(number)).to_have_attribute("aria-label", f"colours from 0 to {top}, linear scale")
    maps = page.locator(".sides .heat-map [role=application]")
    first, second = (maps.nth(number).bounding_box() for number in (0, 1))
    assert (first["y"], first["width"], first["height"]) == (second["y"], second["width"], second["height"])
    page.get_by_text("another text, model or option").click()
    page.get_by_role("region", name="second").get_by_role("textbox", name="text", exact=True).fill("the animal sat")
    expect(page.get_by_role("region", name="second")).not_to_contain_text("…")
    first, second = (maps.nth(number).bounding_box() for number in (0, 1))
    assert (first["y"], first["height"]) == (second["y"], second["height"])
    page.get_by_role("combobox", name="full colour").select_option("each row")
    expect(legends.nth(0)).to_contain_text("of the row’s largest")
