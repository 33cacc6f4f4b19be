"""What the page is for, in six tests; the other tests in a browser are extended."""

import re

import numpy as np
from playwright.sync_api import expect

from tests.viewer.pages import SCORES, WORDS, fragment, show, take


def test_the_page_opens_on_a_sentence_that_is_drawn(open_page):
    page = open_page()
    expect(page.get_by_role("combobox", name="model")).to_have_value("bert")
    expect(page.get_by_role("textbox", name="text", exact=True)).to_have_value(re.compile("^The animal"))
    expect(page.locator(".thumbnail")).to_have_count(4)
    expect(page).to_have_url(re.compile(r"#model=bert&query=\d+$"))


def test_a_text_is_run(open_page):
    page = open_page("model=bert&text=the+cat+sat")
    expect(page.locator(".thumbnail")).to_have_count(4)
    page.get_by_role("textbox", name="text", exact=True).fill("the cat sat on the mat")
    page.locator(".thumbnail").nth(1).click()
    expect(page.get_by_role("tab", name="Head")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tabpanel")).to_contain_text("mat")


def test_a_head_shows_the_weights_beside_the_words(open_page):
    page = show(open_page, SCORES, WORDS, "Head")
    page.locator(".queries [role=option]").nth(1).hover()
    expect(page.locator(".keys small")).to_have_text(["< 0.1 %"] * 4 + ["100 %"] + ["< 0.1 %"] * 3)
    page.locator(".keys [role=option]").nth(3).hover()
    expect(page.locator(".queries small").nth(0)).to_have_text("100 %")
    expect(page.locator(".queries small").nth(7)).to_have_text("13 %")
    page.mouse.move(5, 5)
    expect(page.locator(".queries small").nth(0)).to_have_text("")


def test_two_heads_are_compared(open_page, heed):
    page = open_page("model=bert&text=the+cat+sat&view=compare&head=0&query=1&key=2")
    page.get_by_role("combobox", name="second head").select_option("3")
    weights = heed.attend("bert", text="the cat sat").weights[0, :, 1, 2]
    first = page.get_by_role("region", name="first").locator(".selection .value").first
    second = page.get_by_role("region", name="second").locator(".selection .value").first
    expect(first).to_have_attribute("title", f"{weights[0]:.4f}")
    expect(second).to_have_attribute("title", f"{weights[3]:.4f}")
    assert np.ptp(weights[[0, 3]]) > 1e-3
    expect(page.get_by_role("region", name="difference").locator("canvas").first).to_be_visible()


def test_a_saved_page_opens_without_a_server_and_saves_itself(open_page, open_file, tmp_path):
    page = open_page("model=bert&text=the+cat+sat&view=matrix&head=3")
    take(page, "HTML page").save_as(tmp_path / "saved.html")
    page = open_file(tmp_path / "saved.html")
    expect(page.get_by_role("tab", name="Matrix")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value("3")
    page.get_by_role("tab", name="Model").click()
    expect(page.locator(".thumbnail")).to_have_count(4)
    take(page, "HTML page").save_as(tmp_path / "again.html")
    expect(open_file(tmp_path / "again.html").get_by_role("tab", name="Model")).to_be_visible()


def test_keys_move_through_views_and_words(open_page):
    page = show(open_page, SCORES, WORDS, "Head")
    selection = page.locator(".selection")
    page.get_by_role("tab", name="Head").focus()
    for key, view in {"ArrowLeft": "Model", "ArrowRight": "Head"}.items():
        page.keyboard.press(key)
        expect(page.get_by_role("tab", name=view)).to_be_focused()
        expect(page.get_by_role("tab", name=view)).to_have_attribute("aria-selected", "true")
    for _ in range(3):  # the menu, the words, the first control
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") in ("SUMMARY", "SELECT")
    page.locator(".queries [role=option]").nth(1).click()
    page.mouse.move(5, 5)
    expect(selection).to_contain_text("“saw” (1) looks at “ship” (4)")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".queries [role=option]").nth(2)).to_be_focused()
    expect(selection).to_contain_text("“an” (2) looks at “at” (5)")
    page.keyboard.press("ArrowRight")
    expect(selection).to_contain_text("“an” (2) is looked at by")
    assert "direction=to" in fragment(page)
    page.keyboard.press("Escape")
    expect(selection).to_contain_text("Point at a word")
