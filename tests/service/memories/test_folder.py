"""The store and its folder, without a server: what stays in it, and what other processes see."""

import errno
import os
from contextlib import nullcontext
from functools import partial

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


def test_a_failed_append_leaves_no_view_of_its_files(memories):
    """Another process then names its longer files as the failed append named those that it deleted."""
    mine = stored(memories)
    mine.arrays()
    with pytest.raises(ZeroDivisionError), mine.appending(rows(5), rows(5), grow):
        raise ZeroDivisionError
    others = Memory(mine.folder)
    with others.appending(rows(7), rows(7), grow):
        pass
    for memory in (mine, others):
        assert [array[0, 0, :, 0].tolist() for array in memory.arrays()[1:]] == [[1, 1, 7, 7]] * 2


def test_a_disk_that_is_full_during_growth_keeps_nothing_of_it(memories, monkeypatch):
    memory = stored(memories)
    before = sorted(os.listdir(memory.folder))

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoRoom), memory.appending(rows(2), rows(2), partial(memories.growing, memory)):
        pytest.fail("there is no room")
    assert sorted(os.listdir(memory.folder)) == before


def test_numbers_are_checked_while_another_process_replaces_the_files(memories, monkeypatch):
    memory = Memory(stored(memories).folder)
    old = memory.state()
    with Memory(memory.folder).appending(rows(7), rows(7), grow):
        pass
    looks = iter([old])
    now = memory.state
    monkeypatch.setattr(memory, "state", lambda: next(looks, None) or now())
    memory.verify()
    assert memory.is_verified
