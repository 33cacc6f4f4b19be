"""Memory that the workers share, in which each puts up what it has counted, for whichever is asked for all."""

import mmap
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

MOST = 1 << 22  # bytes of a record; memory that was never written takes none
ATTEMPTS = 100
TURN, LIVE = range(2)
WORDS = 2  # of eight bytes, before the records; each record has as many: its length and its CRC

Key = tuple[str, ...]
Counters = Mapping[Key, list[int]]
Gauges = Mapping[Key, float]


@dataclass(frozen=True)
class Record:
    """What a worker tells: counters, which its successor goes on with, and gauges, which end with it."""

    counters: Counters = field(default_factory=dict)
    gauges: Gauges = field(default_factory=dict)


class Slot:
    """One worker's place on the board. It alone writes there; whoever is forked from the same process may read.

    Two records take turns, so that a worker that is killed while it writes leaves the one before; and a reader knows by
    the CRC when a record was overwritten under its eyes.
    """

    def __init__(self) -> None:
        self._memory = memoryview(mmap.mmap(-1, 8 * WORDS + 2 * (8 * WORDS + MOST)))
        self._words = self._memory[: 8 * WORDS].cast("q")

    def write(self, record: Record) -> None:
        """Put up ``record`` in place of the one before.

        Raises:
            ValueError: it is too long.
        """
        content = pickle.dumps((record.counters, record.gauges))
        if len(content) > MOST:
            raise ValueError(f"{len(content):,} bytes of counters, and {MOST:,} fit")
        turn = self._words[TURN] + 1
        words, space = self._half(turn)
        space[: len(content)] = content
        words[0], words[1] = len(content), crc32(content)
        self._words[TURN], self._words[LIVE] = turn, True

    def read(self) -> Record:
        """The last record; one without gauges where its worker is no more.

        Raises:
            RuntimeError: it is never the same for long enough to be read.
        """
        for _ in range(ATTEMPTS):
            turn, live = self._words[TURN], self._words[LIVE]
            if not turn:
                return Record()
            words, space = self._half(turn)
            content = bytes(space[: min(words[0], MOST)])
            if crc32(content) == words[1]:
                counters, gauges = pickle.loads(content)
                return Record(counters, gauges if live else {})
            time.sleep(0.001)
        raise RuntimeError("a worker's counters cannot be read")

    def leave(self) -> None:
        """Its worker is no more: its counters stay, for the next one to go on with."""
        self._words[LIVE] = False

    def _half(self, turn: int) -> tuple[memoryview, memoryview]:
        start = 8 * WORDS + turn % 2 * (8 * WORDS + MOST)
        return self._memory[start : start + 8 * WORDS].cast("q"), self._memory[start + 8 * WORDS :][:MOST]


class Board:
    """``count`` slots, made before any worker is forked."""

    def __init__(self, count: int = 1) -> None:
        self.slots = [Slot() for _ in range(count)]
        self._free = self.slots[::-1]

    def take(self) -> Slot | None:
        """A slot for a new worker, that of one that has ended first; None if all are taken."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: Slot) -> None:
        """The worker of ``slot`` is dead."""
        slot.leave()
        self._free.append(slot)

    def read(self) -> list[Record]:
        """What each worker has put up."""
        return [slot.read() for slot in self.slots]
