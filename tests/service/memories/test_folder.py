"""The store and its folder, without a server: what stays in it, and what other processes see."""

import errno
import gc
import os
import resource
import shutil
import weakref
from contextlib import closing, contextmanager, nullcontext
from functools import partial

import numpy as np
import orjson
import pytest

from service.errors import Gone, NoRoom, NotFound
from service.memories import folder as folder_module
from service.memories.folder import TEMPORARY, Folder
from service.memories.memory import DESCRIPTION, Description, Memory
from service.memories.store import MAX_OPEN, MemoryStore, open_store

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
    plain = {"block": None, "version": None, "dtype": "float32", "lead": (1, 1), "batch_axis": 0, "d_k": 2, "d_v": 2}
    return Description(**{**plain, "owner": "", "content": "", "created": 0, "expires": None, **fields})


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


def test_a_memory_that_is_deleted_while_it_grows_is_not_found(memories):
    memory = stored(memories)

    @contextmanager
    def grow_deleted(size):
        with memories.growing(memory, size):
            memories.delete(memory.id, "")
            yield

    with pytest.raises(NotFound), memory.appending(rows(2), rows(2), grow_deleted):
        pytest.fail("it was deleted")


def test_a_list_keeps_what_is_in_use_open(memories):
    """Else the numbers of each would be checked again after each list, and others' memories counted as misses."""
    memory = stored(memories)
    id = memory.id
    del memory
    others = [stored(memories, owner="other").id for _ in range(MAX_OPEN)]
    memories.get(id, "").verify()
    assert len([*memories.all("")]) == 1
    assert len([*memories.all(None)]) == len(others) + 1
    assert memories.get(id, "").is_verified
    assert memories.misses == 0


def test_open_memories_leave_descriptors_for_connections(folder):
    before = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        memories = open_store(folder, MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for _ in range(40):
        stored(memories).arrays()
    assert len(os.listdir("/proc/self/fd")) - before < 256 / 3
    memories.close()


def test_a_lack_of_descriptors_is_no_damage(memories, monkeypatch):
    memory = stored(memories)

    def too_many(*_, **__):
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", too_many)
    with pytest.raises(OSError, match="too many"):
        Memory(memory.folder)


@pytest.mark.parametrize(
    "change", [{"batch_axis": 7}, {"dtype": "float22"}, {"created": 1e300}, {"lead": []}, {"d_k": 0}, {"lead": [1, -1]}]
)
def test_a_description_that_makes_no_sense_is_damaged(memories, change):
    memory, other = stored(memories), stored(memories)
    file = memory.folder / DESCRIPTION
    file.write_bytes(orjson.dumps(orjson.loads(file.read_bytes()) | change))
    with pytest.raises(Gone):
        Memory(memory.folder)
    again = MemoryStore(memories._folder, MIB)
    assert [found.id for found in again.all("") if isinstance(found, Memory)] == [other.id]


def test_a_memory_that_another_process_deleted_is_let_go(memories):
    memory = stored(memories)
    memory.arrays()
    seen = weakref.ref(memory)
    MemoryStore(memories._folder, MIB).delete(memory.id, "")
    del memory
    memories.sweep()
    gc.collect()
    assert seen() is None


def test_a_request_does_not_wait_while_an_evicted_memory_is_deleted(memories, monkeypatch):
    """It would wait in the event loop."""
    memory, rmtree = stored(memories), shutil.rmtree
    found = []

    def rmtree_slowly(path, **options):
        with pytest.raises(NotFound), memory.use():
            pytest.fail("it is hidden already")
        found.append(path)
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree_slowly)
    memories.limit = memories.used_bytes()
    memories.make_room(1)
    assert len(found) == 1


def test_a_temporary_folder_is_claimed_before_other_servers_see_it(tmp_path, monkeypatch):
    """One that starts at the same time deletes the folders that nobody claims."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    left = tmp_path / f"{TEMPORARY}left"
    left.mkdir()
    claim, second = folder_module._claimed, []

    def start_another(folder, kind):
        if not second:
            second.append(Folder(None))
            second[0].claim()
        return claim(folder, kind)

    monkeypatch.setattr(folder_module, "_claimed", start_another)
    first = Folder(None)
    first.claim()
    assert first.path.is_dir()
    assert second[0].path.is_dir()
    assert not left.exists()
    for folder in (first, second[0]):
        folder.close()
    assert not [*tmp_path.iterdir()]


def test_nothing_is_evicted_for_what_does_not_fit(memories):
    unused, used = (memories.create(description(), rows(1, 10_000), rows(1, 10_000), (10_000,)) for _ in range(2))
    with used.use(), pytest.raises(NoRoom, match="there is no room"):
        memories.make_room(memories.limit - memories.used_bytes() // 4)
    assert unused.exists()
    assert memories.evictions == 0


def test_keys_that_changed_places_are_noticed(folder):
    with closing(open_store(folder, MIB)) as store:
        memory = store.create(description(), *(np.arange(12, dtype="f4").reshape(1, 1, 6, 2) for _ in range(2)), (6,))
        with memory.appending(rows(20), rows(20), grow):
            pass
        Memory(memory.folder).verify()
        file = memory.folder / f"key.{memory.state().generation}"
        content = np.frombuffer(file.read_bytes(), "f4").reshape(-1, 2).copy()
        content[[1, 4]] = content[[4, 1]]
        file.write_bytes(content.tobytes())
        with pytest.raises(Gone, match="not those that were stored"):
            Memory(memory.folder).verify()
