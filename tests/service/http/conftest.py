"""A client of a server with two blocks."""

from collections.abc import Iterator

import httpx
import pytest


@pytest.fixture(scope="session")
def client(two_blocks, shared_server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared_server(two_blocks).url, timeout=60) as client:
        yield client
