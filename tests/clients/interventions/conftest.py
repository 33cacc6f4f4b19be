"""A server of the small GPT-2, and both clients of it."""

import pytest

from tests.support.in_process import serving_in_process


@pytest.fixture(scope="module")
def url(generating):
    with serving_in_process(generating / "models") as service:
        yield f"http://127.0.0.1:{service.port}"


@pytest.fixture
def heed(url, connect):
    return connect(url)
