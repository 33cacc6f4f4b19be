"""Take the documentation's pictures of the viewer from a running server: `python -m scripts.viewer_picture [URL]`.

A server with `reverse_words`, which `examples/reverse_words.py` trains, gives those of an alignment and of patches;
one with `scaled_dot_product` and without a model of texts that of the built-in example.
"""

import shutil
import sys
from pathlib import Path
from urllib.parse import urlencode

import httpx
from playwright.sync_api import Page, expect, sync_playwright

DOCS = Path(__file__).parents[1] / "docs"
REVERSE_WORDS = "reverse_words"
ALIGNMENT = "view=generate&text=the+old+cat+sat+on+the+mat&layer=1&token=2"
PATCHED = {
    "view": "patch",
    "text": "the old cat sat on the mat",
    "target": "mat the on",
    "patch": '{"source":"the old cat slept on the mat","at":"encoder_hidden","metric":"logit_difference","cell":[1,3]}',
}


def main(url: str = "http://127.0.0.1:8000") -> None:
    """Open the page like any user, and save its pictures: the built-in example, or the alignment and patches."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 850}, color_scheme="light")
        names = [line["block"] for line in httpx.get(f"{url}/v1/attention").json()["blocks"]]
        if REVERSE_WORDS in names:
            page.set_viewport_size({"width": 1100, "height": 880})
            page.goto(f"{url}/#model={REVERSE_WORDS}&{ALIGNMENT}")
            expect(page.locator(".selection")).to_contain_text("“on” (2) looks at")
            take(page, "alignment.png")
            page.goto(f"{url}/#model={REVERSE_WORDS}&{urlencode(PATCHED)}")
            expect(page.get_by_role("region", name="next tokens")).to_contain_text("slept")
            take(page, "patch.png")
        else:
            page.goto(url)
            expect(page.locator(".selection")).to_contain_text("animal")
            take(page, "viewer.png")


def take(page: Page, name: str) -> None:
    page.wait_for_timeout(500)  # the page draws in the next frames
    page.screenshot(path=DOCS / name)


if __name__ == "__main__":
    main(*sys.argv[1:])
