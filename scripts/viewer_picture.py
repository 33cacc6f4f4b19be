"""Take the README's picture of the viewer from a running server: `python -m scripts.viewer_picture [URL]`."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

PICTURE = Path(__file__).parents[1] / "docs" / "viewer.png"


def main(url: str = "http://127.0.0.1:8000") -> None:
    """Open the page as anybody does, and save what is drawn: the built-in example, *it* held."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 760}, color_scheme="light")
        page.goto(url)
        expect(page.locator(".selection")).to_contain_text("animal")
        page.wait_for_timeout(500)  # the lines are drawn in the next frames
        page.screenshot(path=PICTURE)


if __name__ == "__main__":
    main(*sys.argv[1:])
