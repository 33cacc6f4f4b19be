"""The four views look as they did: compared at a quarter of the size, as fonts differ between machines.

``HEED_TEST_PICTURES=1`` takes the pictures anew.
"""

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import expect

PICTURES = Path(__file__).with_name("pictures")
VIEWS = ("model", "head", "matrix", "tokens")
TOLERANCE = 6  # mean difference of a pixel, of 255; two different views differ by more


def taken(page):
    picture = Image.open(io.BytesIO(page.get_by_role("tabpanel").screenshot())).convert("RGB")
    return picture.resize((200, 120), Image.Resampling.BOX)


def difference(one, other):
    return np.abs(np.asarray(one, float) - np.asarray(other, float)).mean()


def test_each_view(open_page):
    page = open_page("model=bert&text=the+animal+did+not+cross+the+street&view=model&head=1&query=2")
    for view in VIEWS:
        page.get_by_role("tab", name=view).click()
        expect(page.locator(".thumbnail" if view == "model" else ".selection").first).to_be_visible()
        page.mouse.move(5, 5)
        page.wait_for_timeout(300)
        picture = taken(page)
        if os.environ.get("HEED_TEST_PICTURES"):
            PICTURES.mkdir(exist_ok=True)
            picture.save(PICTURES / f"{view}.png")
        distances = {name: difference(picture, Image.open(PICTURES / f"{name}.png")) for name in VIEWS}
        assert distances.pop(view) <= TOLERANCE
        assert min(distances.values()) > TOLERANCE
