"""The first thing that one sees, without a keystroke, and where the page's files come from."""

from playwright.sync_api import expect


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
