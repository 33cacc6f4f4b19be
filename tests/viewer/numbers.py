"""What the page shows as numbers, read back; and the numbers that it should show."""

import re

import numpy as np
from playwright.sync_api import Page, expect

SHOWN = 5e-5  # weights are shown with four digits


def selected(page: Page) -> dict[int, float]:
    """The listed weights of the selected query, by key."""
    status = page.locator(".selection")
    expect(status.locator("li").first).to_be_visible()
    found = re.findall(r"\((\d+)\) ([-\d.e]+)", " ".join(status.locator("li").all_inner_texts()))
    return {int(key): float(weight) for key, weight in found}


def softmax(scores: np.ndarray) -> np.ndarray:
    """Of each row, in float64."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attend(query: np.ndarray, key: np.ndarray, scale: float | None = None) -> np.ndarray:
    """The weights [..., m, n] of scaled dot-product attention, in float64."""
    query, key = query.astype(np.float64), key.astype(np.float64)
    return softmax(query @ np.swapaxes(key, -1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale))


def expect_row(page: Page, weights: np.ndarray, error: float = SHOWN) -> None:
    """Wait until the selected query has these weights."""

    def shows() -> bool:
        found = selected(page)
        return len(found) == min(8, len(weights)) and all(
            abs(weight - weights[key]) <= error * 1.01 + 1e-6 for key, weight in found.items()
        )

    for _ in range(100):
        if shows():
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"expected {weights}, the page shows {selected(page)}")
