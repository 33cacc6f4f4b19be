"""The documentation in a browser, opened as files: nothing is fetched, and formulas, diagrams and the search work."""

import pytest

from tests.viewer.pages import drawn

BACKGROUND = "getComputedStyle(document.body).backgroundColor"
WHITE = "rgb(255, 255, 255)"
PAGES = ("index", "tutorial", "concepts", "settings", "client", "architecture", "blocks/index", "blocks/kernel")


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_drawn_on_a_dark_screen_and_a_phone(open_file, guide, name):
    page = open_file(guide / f"{name}.html", color_scheme="dark")
    assert page.locator(".arithmatex").count() == page.locator(".arithmatex .katex").count()
    assert page.locator(".katex-error").count() == 0
    if name == "architecture":
        page.locator("div.mermaid").wait_for()  # its drawing is in a closed shadow root
    if name == "blocks/kernel":
        assert page.locator(".arithmatex .katex").count() == 1
        assert page.locator("figure.weights rect").count() > 50
    assert page.evaluate(BACKGROUND) != WHITE
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        drawn(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if name == "architecture":
            assert page.locator("div.mermaid").bounding_box()["height"] > 100


def test_the_search_finds_an_option(open_file, guide):
    page = open_file(guide / "index.html")
    assert page.evaluate(BACKGROUND) == WHITE
    page.locator("input.md-search__input").click()
    page.keyboard.type("softcap")
    page.locator(".md-search-result__item").first.wait_for()
    assert "softcap" in page.locator(".md-search-result__list").inner_text()
