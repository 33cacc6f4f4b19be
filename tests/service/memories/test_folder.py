"""The store and its folder, without a server: what stays in it, and what other processes see."""

import errno
import os
from contextlib import nullcontext

import numpy as np
import pytest

from service.errors import Gone, NoRoom, NotFound
from service.memories.memory import DESCRIPTION, Description, Memory
from service.memories.store import open_store

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "memories"


@pytest.fixture
def memories(folder):
    store = open_store(folder, MIB)
    yield store
    store.close()


def rows(number, count=2):
    return np.full((1, 1, count, 2), number, np.float32)


def description(**fields):
    plain = dict(owner="", block=None, version=None, dtype="float32", lead=(1, 1), batch_axis=0, d_k=2, d_v=2)
    return Description(**plain, content="", created=0, **{"expires": None, **fields})


def stored(memories, **fields):
    """A memory of two keys and values, all 1."""
    return memories.create(description(**fields), rows(1), rows(1), (2,))


def grow(_):
    return nullcontext()


def test_folders_of_others_stay(folder):
    """A volume's root has a lost+found that only root may read; a home folder has hidden ones."""
    theirs = [folder / name / "file" for name in (".ssh", ".cache", "lost+found", "x" * 23)]
    for file in theirs:
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(MIB))
    left = [folder / f".{'x' * 24}", folder / f".{'x' * 24}.0123abcd"]
    for unfinished in left:
        unfinished.mkdir()
    memories = open_store(folder, MIB)
    assert memories.used_bytes() == 0
    assert stored(memories).exists()
    memories.close()
    assert all(file.exists() for file in theirs)
    assert not any(unfinished.exists() for unfinished in left)
