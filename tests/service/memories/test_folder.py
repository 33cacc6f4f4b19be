"""The store and its folder, without a server: what stays in it, and what other processes see."""

import errno
import gc
import os
import resource
import shutil
import sys
import time
import weakref
from contextlib import closing, nullcontext
from functools import partial
from unittest.mock import Mock

import numpy as np
import orjson
import pytest

from service.base.errors import Gone, NoRoom, NotFound
from service.memories import folder as folder_module
from service.memories import state as state_module
from service.memories.folder import TEMPORARY, Folder
from service.memories.memory import DESCRIPTION, STATE, Memory, checksums
from service.memories.store import MemoryStore
from tests.support.stored_memories import MIB, append, contents, description, rows, stored


def test_folders_of_others_stay(folder):
    """A volume's root has a lost+found that only root may read; a home folder has hidden ones."""
    theirs = [folder / name / "file" for name in (".ssh", ".cache", "lost+found", "x" * 23)]
    for file in theirs:
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(MIB))
    left = [folder / f".{'x' * 24}", folder / f".{'x' * 24}.0123abcd"]
    for unfinished in left:
        unfinished.mkdir()
    with closing(MemoryStore(Folder(folder), MIB)) as memories:
        assert memories.used_bytes() == 0
        assert stored(memories).exists()
    assert all(file.exists() for file in theirs)
    assert not any(unfinished.exists() for unfinished in left)


@pytest.mark.usefixtures("memories")
def test_a_folder_has_one_server(folder):
    with pytest.raises(OSError, match="another server uses this folder"):
        MemoryStore(Folder(folder), MIB)


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "temporary"])
def test_a_folder_that_somebody_deleted_is_made_again(tmp_path, monkeypatch, is_kept):
    """As services that clean /tmp do. Each worker makes it, or finds it made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = Folder(tmp_path / "memories" if is_kept else None)
    with closing(MemoryStore(folder, MIB)) as memories:
        lost = stored(memories).id
        shutil.rmtree(folder.path)
        with pytest.raises(NotFound):
            memories.get(lost, "")
        kept = stored(memories).id
        assert contents(memories.get(kept, "")) == [[1, 1], [1, 1]]
        if is_kept:
            with pytest.raises(OSError, match="another server uses this folder"):
                Folder(folder.path)


def test_a_deleted_folder_that_another_server_has_made_again_is_its_own(folder):
    with closing(MemoryStore(Folder(folder), MIB)) as memories:
        shutil.rmtree(folder)
        with closing(MemoryStore(Folder(folder), MIB)), pytest.raises(NoRoom, match="another server"):
            stored(memories)


def test_processes_share_one_copy(memories):
    """The arrays are the file's own pages: what is written to it is in them."""
    memory = stored(memories)
    others = Memory(memory.folder)
    arrays = [array for each in (memory, others) for array in each.arrays()[1:]]
    for name in ("key.0", "value.0"):
        with (memory.folder / name).open("r+b") as file:
            file.write(rows(9).tobytes())
    assert [array.ravel().tolist() for array in arrays] == [[9] * 4] * 4


def test_an_expired_memory_is_not_found_and_swept(memories):
    expired, living = stored(memories, expires=time.time() - 1), stored(memories, expires=time.time() + 1000)
    with pytest.raises(NotFound):
        memories.get(expired.id, "")
    assert [memory.id for memory in memories.all("")] == [living.id]
    memories.sweep()
    assert (expired.exists(), living.exists()) == (False, True)
    memories.sweep()
    assert (memories.counted, memories.counted_bytes) == (1, memories.used_bytes())


def test_a_list_keeps_what_is_in_use_open(memories):
    """Else the numbers of each would be checked again after each list, and others' memories counted as misses."""
    memories._max_open = 4
    id = stored(memories).id
    for _ in range(4):
        stored(memories, owner="other")
    memories.get(id, "").verify()
    assert [len([*memories.all(owner)]) for owner in ("", None)] == [1, 5]
    assert memories.get(id, "").is_verified
    assert memories.misses == 0


def test_open_memories_leave_descriptors_for_connections(folder):
    before = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        memories = MemoryStore(Folder(folder), MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with closing(memories):
        for _ in range(40):
            stored(memories).arrays()
        assert len(os.listdir("/proc/self/fd")) - before < 256 / 3


def test_a_lack_of_descriptors_is_no_damage(memories, monkeypatch):
    memory = stored(memories)
    monkeypatch.setattr(os, "open", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
    with pytest.raises(OSError, match="too many"):
        Memory(memory.folder)


CHANGES = ({"batch_axis": 7}, {"dtype": "float22"}, {"created": 1e300}, {"lead": []}, {"d_k": 0}, {"lead": [1, -1]})
DAMAGES = [  # a file, its content afterwards; None: without it
    *[(name, None) for name in (STATE, "key.0")],
    *((DESCRIPTION, lambda content, change=change: orjson.dumps(orjson.loads(content) | change)) for change in CHANGES),
    (DESCRIPTION, lambda _: b"{"),
    (STATE, lambda content: b"\1" * len(content)),
    (STATE, lambda content: content[:-1]),
    ("key.0", lambda content: content[:-1]),
    ("value.0", lambda content: b"\xff\x7f" + content[2:]),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_memory_is_gone_and_the_others_live(memories, name, damage):
    memory, other = stored(memories), stored(memories)
    file = memory.folder / name
    if damage:
        file.write_bytes(damage(file.read_bytes()))
    else:
        file.unlink()
    with pytest.raises(Gone, match=None if damage else "missing"):
        Memory(memory.folder).verify()
    listed = [each.id for each in MemoryStore(memories._folder, MIB).all("") if isinstance(each, Memory)]
    assert (other.id in listed, memory.id in listed) == (True, name not in (DESCRIPTION, STATE))


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
    removed = []

    def rmtree_slowly(path, **options):
        with pytest.raises(NotFound), memory.use():
            pytest.fail("it is hidden already")
        removed.append(path)
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree_slowly)
    memories.limit = memories.used_bytes()
    memories.make_room(1)
    assert len(removed) == 1


def test_a_temporary_folder_that_another_server_deletes_before_it_is_claimed_is_made_again(tmp_path, monkeypatch):
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
    assert (first.path.is_dir(), second[0].path.is_dir(), left.exists()) == (True, True, False)
    for folder in (first, second[0]):
        folder.close()
    assert not [*tmp_path.iterdir()]


def test_the_number_of_memories_is_limited(memories):
    """The least recently used is evicted, unless a request uses it."""
    memories.max_memories = 3
    oldest, second, third = (stored(memories) for _ in range(3))
    for age, memory in enumerate((third, second, oldest)):
        os.utime(memory.folder / DESCRIPTION, times=(0, 1000 - age))
    deleted = memories.folder / f".{'x' * 24}.0123abcd"
    deleted.mkdir()
    with oldest.use():
        memories.append(oldest, rows(2), rows(2), None, (2,))
        assert all(memory.exists() for memory in (oldest, second, third))
        last = stored(memories)
        assert [memory.exists() for memory in (oldest, second, third, last)] == [True, False, True, True]
        with third.use(), last.use(), pytest.raises(NoRoom, match="all 3 memories are in use"):
            stored(memories)
    memories.delete(third.id, "")
    assert stored(memories).exists()
    assert (oldest.exists(), last.exists(), memories.evictions) == (True, True, 1)


def test_a_folder_with_more_memories_than_the_limit_shrinks_by_one_at_a_time(memories):
    for _ in range(6):
        stored(memories)
    memories.max_memories = 3
    counts = [len([stored(memories), *memories.all("")]) - 1 for _ in range(4)]
    assert counts == [5, 4, 3, 3]


def test_nothing_is_evicted_for_what_does_not_fit(memories):
    unused, used = (memories.create(description(), rows(1, 10_000), rows(1, 10_000), (10_000,)) for _ in range(2))
    with used.use(), pytest.raises(NoRoom, match="there is no room"):
        memories.make_room(memories.limit - memories.used_bytes() // 4)
    assert unused.exists()
    assert memories.evictions == 0


def calls(function):
    """How many functions ``function`` calls."""
    count = 0

    def see(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_more_rows_take_hardly_more_calls(memories):
    """An append makes one of each, which adds up its length."""

    def calls_of(count):
        key, counts = np.ones((count, 1, 1, 2), np.float32), (1,) * count
        memory = memories.create(description(lead=(count, 1)), key, key, counts)

        def append_key():
            with memory.appending(key, key, lambda _: nullcontext(), None, counts):
                pass

        compute = partial(checksums, memory.description, (key, key), counts, counts)
        return [calls(function) for function in (compute, memory.verify, append_key)]

    few, many = calls_of(2), calls_of(64)
    assert max(more - less for more, less in zip(many, few, strict=True)) <= 64, (few, many)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("step", [1, 7, 1 << 16])
def test_the_checksum_is_that_of_each_row(axis, step, monkeypatch):
    """As it was computed before: files that are kept have it."""
    monkeypatch.setattr(state_module, "STEP_KEYS", step)
    array = np.random.default_rng(0).standard_normal((3, 2, 2, 5, 4)).astype(np.float16).swapaxes(0, axis)
    starts, counts = [2, 0, 2**40], [5, 0, 3]
    expected = 0
    for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
        for head, keys in enumerate(array.take(row, axis).reshape(4, 5, 4)):
            for place, key in enumerate(keys[:count], start):
                factor = ((head << 32) + place) * 0x9E3779B97F4A7C15 | 1
                expected += sum(map(int, key.view(np.uint16))) * factor
    lead = array.shape[:3]
    found = checksums(description(dtype="float16", lead=lead, batch_axis=axis), (array, array), starts, counts)
    assert found == (expected % 2**64,) * 2


def test_keys_that_changed_places_are_noticed(memories):
    memory = memories.create(description(), *(np.arange(12, dtype="f4").reshape(1, 1, 6, 2) for _ in range(2)), (6,))
    append(memory, 20)
    Memory(memory.folder).verify()
    file = memory.folder / f"key.{memory.state().generation}"
    content = np.frombuffer(file.read_bytes(), "f4").reshape(-1, 2).copy()
    content[[1, 4]] = content[[4, 1]]
    file.write_bytes(content.tobytes())
    with pytest.raises(Gone, match="do not match their checksums"):
        Memory(memory.folder).verify()
