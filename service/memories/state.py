"""The state of a memory, which changes: its lengths. A process killed at any moment leaves it valid.

The file has two slots of equal size, written in turn, each with a checksum of itself. A reader takes the valid one with
the higher sequence number, so a write that is not finished changes nothing.
"""

import mmap
import os
import struct
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from service.base.errors import Gone

HEAD = struct.Struct("<QQQQQ")  # sequence, generation, capacity, checksums of keys and values
CRC = struct.Struct("<I")
READS = 10  # of two slots of which one is being written at any time, before they count as damaged
PAUSE_S = 0.0001
STEP_KEYS = 1 << 16  # of a checksum at a time: its numbers stay in the processor's cache
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio: its multiples are spread evenly


@dataclass(frozen=True, slots=True)
class State:
    """The number of keys of each row of the batch, and the files with them.

    ``sequence`` counts the writes. The files have room for ``capacity`` keys; they are replaced when ``generation``
    grows.
    """

    sequence: int
    generation: int
    capacity: int
    checksums: tuple[int, int]
    lengths: tuple[int, ...]

    @property
    def length(self) -> int:
        """The keys of the longest row."""
        return max(self.lengths)

    @property
    def is_even(self) -> bool:
        """Whether all rows have as many keys."""
        return len(set(self.lengths)) == 1

    def to_bytes(self) -> bytes:
        body = HEAD.pack(self.sequence, self.generation, self.capacity, *self.checksums)
        body += struct.pack(f"<{len(self.lengths)}Q", *self.lengths)
        return CRC.pack(zlib.crc32(body)) + body

    @classmethod
    def from_bytes(cls, content: bytes) -> "State | None":
        """The state of a slot; None if it is not valid."""
        body = content[CRC.size :]
        if CRC.unpack_from(content)[0] != zlib.crc32(body):
            return None
        sequence, generation, capacity, *checksums = HEAD.unpack_from(body)
        lengths = struct.unpack_from(f"<{(len(body) - HEAD.size) // 8}Q", body, HEAD.size)
        return cls(sequence, generation, capacity, (checksums[0], checksums[1]), lengths)


class StateFile:
    """The state of a memory whose batch has ``rows`` rows, in a file that all processes map.

    Raises:
        OSError: it cannot be read.
        Gone: it is shorter than its slots.
    """

    def __init__(self, path: Path, rows: int) -> None:
        self._size = CRC.size + HEAD.size + 8 * rows
        with path.open("r+b") as file:
            if os.fstat(file.fileno()).st_size != 2 * self._size:
                raise Gone("the state of the memory is damaged")
            self._map = mmap.mmap(file.fileno(), 2 * self._size)

    @staticmethod
    def create(path: Path, state: State) -> None:
        """Write a new file."""
        path.write_bytes(2 * state.to_bytes())

    def read(self) -> State:
        """The state after the last finished write.

        Raises:
            Gone: no slot is valid.
        """
        for _ in range(READS):
            slots = [State.from_bytes(self._map[place : place + self._size]) for place in (0, self._size)]
            valid = [state for state in slots if state is not None]
            if valid:
                return max(valid, key=lambda state: state.sequence)
            time.sleep(PAUSE_S)
        raise Gone("the state of the memory is damaged")

    def write(self, state: State) -> None:
        """Replace the older slot. The caller holds the lock of the memory's appends."""
        place = state.sequence % 2 * self._size
        self._map[place : place + self._size] = state.to_bytes()


def checksum(array: np.ndarray, starts: Sequence[int], counts: Sequence[int]) -> int:
    """The checksum of the keys or values ``array`` [rows, ..., n, d].

    Of row i the first ``counts[i]`` keys count, of which the first has the place ``starts[i]``.

    It is the sum of the numbers' bits as whole numbers, those of each key multiplied by an odd number that depends on
    its place, modulo 2**64: that of two parts is the sum of theirs, and keys that changed places change it.
    """
    words = array.view(np.uint32 if array.dtype.itemsize == 4 else np.uint16)
    first, count = np.array(starts, np.uint64)[:, None], np.array(counts, np.uint64)[:, None]
    heads = np.arange(prod(array.shape[1:-2]), dtype=np.uint64)[:, None] << np.uint64(32)
    rows = max(1, STEP_KEYS // max(1, len(heads) * array.shape[-2]))
    step, total = max(1, STEP_KEYS // max(1, len(heads))), 0
    for row in range(0, len(array), rows):
        part, longest = slice(row, row + rows), int(count[row : row + rows].max())
        for start in range(0, longest, step):
            of_keys = words[part, ..., start : min(start + step, longest), :].sum(-1, dtype=np.uint64)
            of_keys = of_keys.reshape(len(of_keys), len(heads), -1)
            keys = np.arange(start, start + of_keys.shape[-1], dtype=np.uint64)
            places = heads + (first[part] + keys)[:, None]
            of_keys *= (places * GOLDEN | np.uint64(1)) * (keys < count[part])[:, None]
            total += int(of_keys.sum(dtype=np.uint64))
    return total % 2**64
