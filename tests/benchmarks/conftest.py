"""A port with free ones behind it."""

import socket

import pytest


@pytest.fixture
def free_port() -> int:
    """The first of eight; another process may still take one of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
