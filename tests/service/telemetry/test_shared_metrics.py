"""Shared metrics: what a worker writes, all can read whole, even when the writer is killed."""

import multiprocessing
import os
import signal
import time

import pytest

from service.telemetry.shared_metrics import MAX_RECORD_BYTES, Record, SharedMetrics, WorkerSlot

FORK = multiprocessing.get_context("fork")


def record(number: int) -> Record:
    """One whose every number is ``number``, and whose length changes with it."""
    return Record({("of", str(key)): [number] * 500 for key in range(1 + number % 20)}, {("now",): number})


def write_on(slot: WorkerSlot) -> None:
    number = 0
    while True:
        number += 1
        slot.write(record(number))


def test_empty_slots_give_empty_records():
    assert SharedMetrics(3).read() == [Record()] * 3


def test_records_are_read_whole_while_they_are_written_and_after_the_writer_was_killed():
    slot = WorkerSlot()
    writer = FORK.Process(target=write_on, args=(slot,))
    writer.start()
    seen: set[float] = set()
    end = time.monotonic() + 60
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
    slot.retire()
    assert slot.read() == Record(last.counters)


def test_the_slot_of_an_ended_worker_goes_to_a_new_one():
    shared_metrics = SharedMetrics(2)
    first, second = shared_metrics.acquire(), shared_metrics.acquire()
    assert shared_metrics.acquire() is None
    first.write(record(1))
    second.write(record(2))
    shared_metrics.release(first)
    assert shared_metrics.read() == [Record(record(1).counters), record(2)]
    assert shared_metrics.acquire() is first


def test_a_record_too_long_is_refused_and_the_one_before_stays():
    slot = WorkerSlot()
    slot.write(record(1))
    with pytest.raises(ValueError, match=f"the limit is {MAX_RECORD_BYTES:,}"):
        slot.write(Record({("of", "x" * MAX_RECORD_BYTES): [1]}))
    assert slot.read() == record(1)
