"""The workers' board: what one writes all can read, whole, whatever becomes of the writer."""

import multiprocessing
import os
import signal
import time

import pytest

from service.board import MOST, Board, Record, Slot

FORK = multiprocessing.get_context("fork")


def record(number: int) -> Record:
    """One whose every number is ``number``, and whose length changes with it."""
    return Record({("of", str(key)): [number] * 500 for key in range(1 + number % 20)}, {("now",): number})


def write_on(slot: Slot) -> None:
    number = 0
    while True:
        number += 1
        slot.write(record(number))


def test_an_empty_board_tells_nothing():
    assert Board(3).read() == [Record()] * 3


def test_records_are_read_whole_while_they_are_written_and_after_the_writer_was_killed():
    slot = Slot()
    writer = FORK.Process(target=write_on, args=(slot,))
    writer.start()
    seen: set[float] = set()
    end = time.monotonic() + 30
    try:
        while len(seen) < 100:
            assert time.monotonic() < end
            found = slot.read()
            if found.gauges:
                assert found == record(int(found.gauges["now",]))
                seen.add(found.gauges["now",])
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    last = slot.read()
    assert last == record(int(last.gauges["now",]))
    slot.leave()
    assert slot.read() == Record(last.counters)


def test_slots_go_from_the_dead_to_the_new():
    board = Board(2)
    first, second = board.take(), board.take()
    assert board.take() is None
    first.write(record(1))
    second.write(record(2))
    board.give_back(first)
    assert board.read() == [Record(record(1).counters), record(2)]
    assert board.take() is first


def test_a_record_too_long_is_refused_and_the_one_before_stays():
    slot = Slot()
    slot.write(record(1))
    with pytest.raises(ValueError, match=f"{MOST:,} fit"):
        slot.write(Record({("of", "x" * MOST): [1]}))
    assert slot.read() == record(1)
