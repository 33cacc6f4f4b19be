import shutil
from urllib.parse import urlencode

import httpx
import pytest
from playwright.sync_api import Page

from tests.viewer.generate.words import LISTED, TEXT, expect_end


@pytest.fixture(scope="session")
def generators(generating, two_stacks, tmp_path_factory):
    """A repository with a small GPT-2 and a small BART, both with random weights and the same tokenizer of words."""
    folder = tmp_path_factory.mktemp("generators")
    shutil.copytree(generating / "models" / "gpt", folder / "gpt")
    shutil.copytree(two_stacks / "bart", folder / "bart")
    return folder


@pytest.fixture(scope="session")
def url(shared_server, generators):
    return shared_server(generators).url


@pytest.fixture
def generate(url):
    """The API's answer."""
    with httpx.Client(base_url=url, timeout=60) as client:

        def post(model="gpt", **body):
            body = {"next_tokens": LISTED, **body}
            body |= {} if body.keys() & {"text", "input_ids", "pixel_values"} else {"text": TEXT}
            response = client.post(f"/v1/generate/{model}", json=body)
            assert response.status_code == 200, response.text
            return response.json()

        yield post


@pytest.fixture
def open_text(open_page, url):
    """Opens the view on TEXT, and waits for the end of what is generated."""

    def open_(model="gpt", *, ended=True, expected="no error", options=None, **settings) -> Page:
        given = {"model": model, "text": TEXT, "view": "generate", "layer": 0, "head": 0, "palette": "greys"}
        page = open_page(urlencode(given | settings), url=url, expected=expected, **(options or {}))
        if ended:
            expect_end(page)
        return page

    return open_
