"""A server of the small GPT-2, and a client of it."""

import httpx
import pytest

from tests.support.in_process import serving_in_process


@pytest.fixture(scope="module")
def service(generating):
    with serving_in_process(generating / "models") as service:
        yield service


@pytest.fixture(scope="module")
def client(service):
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client:
        yield client
