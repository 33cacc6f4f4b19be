"""What the server sends of the page, and the numbers in a saved one: no browser is needed."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
from starlette.testclient import TestClient

from heed_client.page import page
from service.app import create_app
from service.cli.options import read_settings
from tests.support.client_calls import page_data


def application(*flags: str) -> TestClient:
    return TestClient(create_app(read_settings(flags)))


@pytest.fixture(scope="module")
def app():
    return application()


def test_the_policy_lets_nothing_in(app):
    response = app.get("/")
    policy = response.headers["content-security-policy"]
    assert response.status_code == 200
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert policy.endswith("frame-ancestors 'none'")
    assert app.get("/viewer/main.js").headers["content-security-policy"] == policy


def test_browsers_keep_modules_of_one_version(app):
    imports = json.loads(re.search(r'<script type="importmap">(.*?)</script>', app.get("/").text)[1])["imports"]
    assert imports["heed/main.js"].startswith("./viewer/main.js?v=")
    for path in imports.values():
        assert "immutable" in app.get(path.removeprefix(".")).headers["cache-control"]
    for path in ("/", "/viewer/main.js", "/viewer/main.js?v=another", "/viewer/server/example.json"):
        assert app.get(path).headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/viewer/%2e%2e/client.py", "/viewer/", "/viewer/no-such.js"])
def test_nothing_else_is_served(app, path):
    assert app.get(path).status_code == 404


def test_it_can_be_switched_off_and_framed():
    off = application("--pages", "docs")
    assert [off.get(path).status_code for path in ("/", "/viewer/main.js")] == [404, 404]
    framed = application("--viewer-frame-ancestors", "https://a.example").get("/")
    assert framed.headers["content-security-policy"].endswith("frame-ancestors https://a.example")


@pytest.mark.parametrize(("n", "dtype", "error"), [(4, "float32", 0), (640, "uint8", 0.5)])
def test_a_saved_page_rounds_more_than_a_million_weights(n, dtype, error):
    """To 256 levels between 0 and the largest; ``error`` is in levels."""
    weights = np.random.default_rng(0).random((2, 3, n, n)).astype(np.float32)
    data = page_data(page(weights))
    assert (data["shape"], data["dtype"]) == ([2, 3, n, n], dtype)
    numbers = np.frombuffer(zlib.decompress(base64.b64decode(data["weights"])), dtype).reshape(weights.shape)
    assert np.abs(numbers * data["unit"] - weights).max() <= (error + 1e-3 * error) * data["unit"]
    assert numbers.max() * data["unit"] == pytest.approx(weights.max())
