"""The built-in blocks, and one whose runs wait."""

from functools import cache

import pytest

from tests.support.engine import SELF, Gate
from tests.support.tasks import opened


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def block(repository):
    """A block by its name, opened once."""
    return cache(lambda name: opened(repository / name / "1"))


@pytest.fixture
def model(block):
    return block(SELF)


@pytest.fixture
def gate(model, monkeypatch):
    return Gate(model, monkeypatch)
