"""The documentation in a browser, opened as files: nothing is fetched, and formulas, diagrams and the search work."""

from tests.viewer.pages import drawn

PAGES = ("index", "tutorial", "concepts", "settings", "client", "architecture", "blocks/index", "blocks/kernel")


BACKGROUND = "getComputedStyle(document.body).backgroundColor"
WHITE = "rgb(255, 255, 255)"


def test_pages_are_drawn(browser, guide):
    """Each at the width of a phone and of a screen; all are opened dark, one also light."""
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: request.url.startswith("http") and wrong.append(request.url))
    for name in PAGES:
        page.set_viewport_size({"width": 1280, "height": 900})  # to make an open page wider moves its navigation
        page.goto((guide / f"{name}.html").as_uri())
        assert page.locator(".arithmatex").count() == page.locator(".arithmatex .katex").count(), name
        assert page.locator(".katex-error").count() == 0, name
        if name == "architecture":
            page.locator("div.mermaid").wait_for()  # its drawing is in a closed shadow root
        if name == "blocks/kernel":
            assert page.locator(".arithmatex .katex").count() == 1
            assert page.locator("figure.weights rect").count() > 50
        assert page.evaluate(BACKGROUND) != WHITE
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            drawn(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            if name == "architecture":
                assert page.locator("div.mermaid").bounding_box()["height"] > 200
    context.close()
    light = browser.new_page(color_scheme="light")
    light.goto((guide / "blocks" / "kernel.html").as_uri())
    assert light.evaluate(BACKGROUND) == WHITE
    light.close()
    assert not wrong


def test_the_search_finds_an_option(browser, guide):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((guide / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("softcap")
    page.locator(".md-search-result__item").first.wait_for()
    assert "softcap" in page.locator(".md-search-result__list").inner_text()
    page.close()
