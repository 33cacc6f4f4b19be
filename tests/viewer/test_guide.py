"""The documentation in a browser, opened as files: nothing is fetched, and formulas, diagrams and the search work."""

import pytest

PAGES = ("index", "tutorial", "concepts", "settings", "client", "architecture", "blocks/index", "blocks/kernel")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_pages_are_drawn(browser, guide, scheme, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: request.url.startswith("http") and wrong.append(request.url))
    for name in PAGES:
        page.goto((guide / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.locator(".arithmatex").count() == page.locator(".arithmatex .katex").count(), name
        assert page.locator(".katex-error").count() == 0, name
    page.goto((guide / "architecture.html").as_uri())
    page.locator("div.mermaid").wait_for()  # its drawing is in a closed shadow root
    assert page.locator("div.mermaid").bounding_box()["height"] > 200
    page.goto((guide / "blocks" / "kernel.html").as_uri())
    assert page.locator(".arithmatex .katex").count() == 1
    assert page.locator("figure.weights rect").count() > 50
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    context.close()
    assert not wrong


def test_the_search_finds_an_option(browser, guide):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((guide / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("softcap")
    page.locator(".md-search-result__item").first.wait_for()
    assert "softcap" in page.locator(".md-search-result__list").inner_text()
    page.close()
