"""The keys and values of sequences that share runs: of each layer [1 + rows, slots, heads, width].

ONNX Runtime reads the first rows of these buffers and writes the next ones, so that no step copies them.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from service.generation.decoder import PAST, Allocate
from service.ort.device_memory import Array

Shapes = Mapping[str, tuple[int, int]]
FLOAT = np.dtype(np.float32)


class Past:
    """Buffers of ``rows`` tokens for the sequences in ``slots``, which all end at row ``end``.

    A shorter sequence has zeros before its first token. The first row is zeros for all (``export.hf.generation.past``).
    """

    def __init__(self, shapes: Shapes, rows: int, slots: int = 1, allocate: Allocate = np.empty) -> None:
        self._shapes, self._allocate = shapes, allocate
        self.rows, self.slots, self.end = rows, slots, 0
        self._buffers = {name: allocate((1 + rows, slots, *shape), FLOAT) for name, shape in shapes.items()}
        for buffer in self._buffers.values():
            buffer[0] = 0

    def read(self) -> dict[str, Array]:
        """The inputs of a run."""
        return {f"{PAST}{name}": buffer[: 1 + self.end] for name, buffer in self._buffers.items()}

    def written(self, new: int) -> dict[str, Array]:
        """Where a run of ``new`` tokens writes their keys and values."""
        first = 1 + self.end
        return {name: buffer[first : first + new] for name, buffer in self._buffers.items()}

    def place(self, slot: int, source: "Past", source_slot: int, length: int) -> None:
        """Copy the last ``length`` tokens of a sequence of ``source`` to ``slot``, so that they end at ``end``."""
        start, stop = 1 + self.end - length, 1 + self.end
        for name, buffer in self._buffers.items():
            given = source._buffers[name][1 + source.end - length : 1 + source.end, source_slot]
            buffer[1:start, slot] = 0
            buffer[start:stop, slot] = given

    @classmethod
    def joined(cls, sources: Sequence[tuple["Past", int, int]], rows: int) -> "Past":
        """A past of the sequences ``sources``: past, slot, and length of each."""
        first = sources[0][0]
        joined = cls(first._shapes, rows, len(sources), first._allocate)
        joined.end = max(length for _, _, length in sources)
        for slot, (source, source_slot, length) in enumerate(sources):
            joined.place(slot, source, source_slot, length)
        return joined
