"""The built-in blocks."""

import pytest

from models.catalogue import BLOCKS
from tests.support.tasks import opened


@pytest.fixture(scope="module")
def models(repository):
    return {name: opened(repository / name / "1") for name in BLOCKS}
