"""Appends to a memory of a store, without a server."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from service.base.errors import Conflict, NotFound
from service.memories.memory import STATE, AppendInProgress, Memory
from tests.support.stored_memories import append, contents, description, rows, stored


def test_an_append_does_not_wait_for_another(memories):
    memory = stored(memories)
    other = Memory(memory.folder)
    with other.appending(rows(7), rows(7), lambda _: nullcontext()), pytest.raises(AppendInProgress):
        memories.append(memory, rows(8), rows(8), None, [2])
    assert contents(memory) == [[1, 1, 7, 7]] * 2


def test_an_append_that_was_not_finished_changes_nothing(memories):
    """Its process was killed while it wrote the state: the slot that is not valid is not read."""
    memory = stored(memories)
    for number in (7, 8):
        memories.append(memory, rows(number), rows(number), None, [2])
    with (memory.folder / STATE).open("r+b") as file:
        file.write(bytes(10))  # into the slot of the second append
    assert contents(Memory(memory.folder)) == [[1, 1, 7, 7]] * 2


@pytest.mark.parametrize(("lengths", "words"), [((2, 2), "2"), ((2, 1), "rows of 2, 1")], ids=["even", "uneven"])
def test_an_append_to_other_lengths_is_a_conflict(memories, lengths, words):
    array = np.ones((2, 1, 2, 2), np.float32)
    memory = memories.create(description(lead=(2, 1)), array, array, lengths)
    with pytest.raises(Conflict, match=f"expected a memory of length 3, got {words}"):
        memories.append(memory, array, array, [3, 3], [2, 2])
    assert memory.state().lengths == lengths


def test_appends_at_once_all_count(memories):
    """320, of threads of one process and of others: each is there once, and in one piece."""
    memory = stored(memories)

    def append_all(place):
        own = memory if place < 4 else Memory(memory.folder)
        for number in range(2 + 40 * place, 42 + 40 * place):
            append(own, number)

    with ThreadPoolExecutor(8) as threads:
        [*threads.map(append_all, range(8))]
    for first, second in (np.reshape(each, (-1, 2)).T for each in contents(memory)):
        assert first.tolist() == second.tolist()
        assert sorted(first) == [*range(1, 322)]


def test_a_failed_append_leaves_no_view_of_its_files(memories):
    """Another process then names its longer files as the failed append named those that it deleted."""
    mine = stored(memories)
    mine.arrays()
    with pytest.raises(ZeroDivisionError), mine.appending(rows(5), rows(5), lambda _: nullcontext()):
        raise ZeroDivisionError
    others = Memory(mine.folder)
    append(others, 7)
    for memory in (mine, others):
        assert contents(memory) == [[1, 1, 7, 7]] * 2


def test_numbers_are_checked_while_another_process_replaces_the_files(memories, monkeypatch):
    memory = Memory(stored(memories).folder)
    old = memory.state()
    append(Memory(memory.folder), 7)
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

    with pytest.raises(NotFound):
        append(memory, 2, grow_deleted)


def test_rows_of_other_lengths_are_appended_as_even_ones(memories):
    key = np.arange(12, dtype=np.float32).reshape(2, 1, 3, 2)
    even, uneven = (memories.create(description(lead=(2, 1)), key, key, (3, last)) for last in (3, 1))
    for memory in (even, uneven):
        memories.append(memory, key, key + 1, None, (2, 2))
        memory.verify()
    (_, *expected), (_, *found) = even.arrays(), uneven.arrays()
    for whole, array in zip(expected, found, strict=True):
        np.testing.assert_array_equal(array[0], whole[0])
        np.testing.assert_array_equal(array[1, :, :3], whole[1][:, [0, 3, 4]])
