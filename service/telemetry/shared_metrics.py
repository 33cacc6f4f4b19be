"""Metrics in memory that all workers share: each worker writes its own record, and any worker can read all of them."""

import mmap
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

MAX_RECORD_BYTES = 1 << 22  # reserved for each record; pages that were never written take no memory
MAX_READS = 100  # of a slot that its worker keeps overwriting
TURN, LIVE = range(2)  # words of a slot's header: how many records were written; whether its worker runs
HEADER_WORDS = 2  # of eight bytes. A slot's header, or a record's: its length in bytes and its CRC

Key = tuple[str, ...]
Counters = Mapping[Key, list[int]]
Gauges = Mapping[Key, float]


@dataclass(frozen=True)
class Record:
    """The metrics of one worker. The worker that replaces it continues its counters; its gauges end with it."""

    counters: Counters = field(default_factory=dict)
    gauges: Gauges = field(default_factory=dict)


class WorkerSlot:
    """Shared memory that one worker writes; processes forked from the same parent can read it.

    Two records alternate, so that a worker killed while writing leaves the previous one intact. A CRC tells a reader
    that the record was overwritten while it was being read.
    """

    def __init__(self) -> None:
        self._memory = memoryview(mmap.mmap(-1, 8 * HEADER_WORDS + 2 * (8 * HEADER_WORDS + MAX_RECORD_BYTES)))
        self._header = self._memory[: 8 * HEADER_WORDS].cast("q")

    def write(self, record: Record) -> None:
        """Replace the record.

        Raises:
            ValueError: it is longer than MAX_RECORD_BYTES.
        """
        content = pickle.dumps((record.counters, record.gauges))
        if len(content) > MAX_RECORD_BYTES:
            raise ValueError(f"{len(content):,} bytes of counters; the limit is {MAX_RECORD_BYTES:,}")
        turn = self._header[TURN] + 1
        header, space = self._half(turn)
        space[: len(content)] = content
        header[0], header[1] = len(content), crc32(content)
        self._header[TURN], self._header[LIVE] = turn, True

    def read(self) -> Record:
        """The last record; without gauges when its worker has ended.

        Raises:
            RuntimeError: the worker overwrote it during each of MAX_READS attempts.
        """
        for _ in range(MAX_READS):
            turn, live = self._header[TURN], self._header[LIVE]
            if not turn:
                return Record()
            header, space = self._half(turn)
            content = bytes(space[: min(header[0], MAX_RECORD_BYTES)])
            if crc32(content) == header[1]:
                counters, gauges = pickle.loads(content)
                return Record(counters, gauges if live else {})
            time.sleep(0.001)
        raise RuntimeError("a worker's metrics cannot be read: they change too fast")

    def retire(self) -> None:
        """Mark the worker as ended: its counters stay, its gauges do not."""
        self._header[LIVE] = False

    def _half(self, turn: int) -> tuple[memoryview, memoryview]:
        start = 8 * HEADER_WORDS + turn % 2 * (8 * HEADER_WORDS + MAX_RECORD_BYTES)
        header = self._memory[start : start + 8 * HEADER_WORDS].cast("q")
        return header, self._memory[start + 8 * HEADER_WORDS :][:MAX_RECORD_BYTES]


class SharedMetrics:
    """``count`` slots, created before any worker is forked."""

    def __init__(self, count: int = 1) -> None:
        self.slots = [WorkerSlot() for _ in range(count)]
        self._free = self.slots[::-1]

    def acquire(self) -> WorkerSlot | None:
        """A slot for a new worker, one of a worker that has ended if there is any; None if all are in use."""
        return self._free.pop() if self._free else None

    def release(self, slot: WorkerSlot) -> None:
        """Free the slot of a worker that has ended."""
        slot.retire()
        self._free.append(slot)

    def read(self) -> list[Record]:
        """The last record of each slot."""
        return [slot.read() for slot in self.slots]
