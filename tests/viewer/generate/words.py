"""The words of the view Generate on a page, and those of the API's answer."""

import re

import numpy as np
from playwright.sync_api import Page, expect

TEXT = "the animal did not cross"
PROMPT = ["<s>", *TEXT.split(), "</s>"]
LISTED = 8  # alternatives


def expect_end(page: Page, words: str = "") -> None:
    expect(page.locator(".ending [role=status]")).to_have_text(re.compile(r"^\d+ tokens?" + words))


def tokens(answer) -> list[str]:
    return [token["token"] or f"#{token['id']}" for token in answer["generated"]]


def shown(page: Page) -> list[str]:
    """The generated words."""
    return page.locator(".word.new").all_inner_texts()


def expect_words(page: Page, words: list[str]) -> None:
    expect(page.locator(".word.new")).to_have_text(words)


def row(token, output="weights") -> np.ndarray:
    """The weights of a token's step in one head."""
    return np.array(token[output]).ravel()
