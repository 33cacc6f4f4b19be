"""A store of memories in a folder of its own, without a server."""

from contextlib import closing

import pytest

from service.memories.folder import Folder
from service.memories.store import MemoryStore
from tests.support.stored_memories import MIB


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "memories"


@pytest.fixture
def memories(folder):
    with closing(MemoryStore(Folder(folder), MIB)) as store:
        yield store
