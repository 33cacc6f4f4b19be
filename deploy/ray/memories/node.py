"""The parts of memories that are on one node: an actor for each node, with files like those of one server."""

import errno
import math
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray

from deploy.ray.memories.layout import Layout
from service.base import machine
from service.base.errors import HeedError, NotFound
from service.memories.folder import Folder
from service.memories.memory import Description, Memory
from service.memories.store import MemoryStore
from service.memories.streaming import StreamingSession
from service.model.graph import Arrays

LAYOUT, NAME = "layout.json", ".name"
MAX_FOLDERS = 256  # of nodes that share a machine


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part in a node's store: its id there, the layout kept beside it, if there is one, and the keys of each row."""

    id: str
    layout: Layout | None
    lengths: tuple[int, ...]
    appends: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The name of a node's store, its limit in bytes, and the bytes in use."""

    store: str
    limit: int
    used: int

    @property
    def room(self) -> int:
        return self.limit - self.used


class PartStore(MemoryStore):
    """A store that evicts nothing: the catalogue evicts memories with all their parts."""

    max_memories = math.inf

    def _least_recently_used(self) -> Sequence[str]:
        return ()


class MemoryNode:
    """The store of one node.

    Args:
        folder: where the parts are kept; each node of a machine has its own folder in it. None = a temporary one.
        limit: largest number of bytes of all parts.
    """

    def __init__(self, folder: Path | None, limit: int) -> None:
        self._store = PartStore(_claimed(folder), limit)
        self._threads = machine.cpus()
        self._name = secrets.token_hex(8)
        if folder is not None:
            named = self._store.folder / NAME
            if not named.exists():
                _write(named, self._name)
            self._name = named.read_text()

    def status(self) -> NodeStatus:
        return NodeStatus(self._name, self._store.limit, self._store.used_bytes())

    def parts(self) -> list[StoredPart]:
        """All parts that are not damaged."""
        return [self._described(memory) for memory in self._store.all(None) if isinstance(memory, Memory)]

    def store(self, description: Description, lengths: tuple[int, ...], rows: Sequence[Any]) -> str:
        """Store the key [*lead, n, d_k] and value [*lead, n, d_v] of a part; return its id.

        Raises:
            NoRoom: the store has no room.
        """
        key, value = _fetched(rows)
        return self._store.create(description, np.ascontiguousarray(key), np.ascontiguousarray(value), lengths).id

    def copy(self, source: Any, id: str, description: Description, lengths: tuple[int, ...]) -> str:
        """Store a copy of the part ``id`` of the node ``source``; return its id here."""
        (rows,) = ray.get(source.rows.remote([(id, lengths)]))
        if isinstance(rows, HeedError):
            raise rows
        return self.store(description, lengths, rows)

    def set_layout(self, ids: Sequence[str], layout: Layout) -> None:
        """Keep the layout of the memory whose parts are ``ids``."""
        for id in ids:
            _write(self._store.get(id, None).folder / LAYOUT, layout.model_dump_json())

    def append(self, id: str, expected: Sequence[int], counts: Sequence[int], rows: Sequence[Any]) -> None:
        """Append the first ``counts[i]`` keys and values to row i, which has ``expected[i]``.

        Raises:
            Conflict: row i does not have ``expected[i]`` keys.
            NoRoom, NotFound, Gone: as ``MemoryStore.append``.
        """
        memory = self._verified(id)
        self._store.append(memory, *_fetched(rows), expected, counts, wait=True)

    def attend(
        self,
        parts: Sequence[tuple[str, Sequence[int], Arrays]],
        shared: Arrays,
        scale: float | None,
        outputs: list[str],
    ) -> list[dict[str, np.ndarray] | Exception]:
        """The ``outputs`` of each part, which is given by its id, the number of keys of each row, and its own inputs.

        ``shared`` are the inputs that all parts have. A part that cannot be read has an error in place of outputs.
        """
        session = StreamingSession(scale, self._threads)
        answers: list[dict[str, np.ndarray] | Exception] = []
        for id, lengths, own in parts:
            try:
                key, value = self._rows(id, lengths)
                answers.append(session.run({**shared, **own, "key": key, "value": value}, outputs))
            except HeedError as error:
                answers.append(error)
        return answers

    def rows(self, parts: Sequence[tuple[str, Sequence[int]]]) -> list[tuple[np.ndarray, np.ndarray] | Exception]:
        """The keys and values of each part, whose rows have at least these lengths, or an error."""
        answers: list[tuple[np.ndarray, np.ndarray] | Exception] = []
        for id, lengths in parts:
            try:
                answers.append(self._rows(id, lengths))
            except HeedError as error:
                answers.append(error)
        return answers

    def delete(self, ids: Sequence[str]) -> None:
        """Delete parts; absent parts are ignored."""
        for id in ids:
            with suppress(NotFound):
                self._store.delete(id, None)

    def _rows(self, id: str, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        _, key, value = self._verified(id).arrays()
        longest = max(lengths)
        return key[..., :longest, :], value[..., :longest, :]

    def _verified(self, id: str) -> Memory:
        memory = self._store.get(id, None)
        if not memory.is_verified:
            memory.verify()
        return memory

    def _described(self, memory: Memory) -> StoredPart:
        file = memory.folder / LAYOUT
        layout = Layout.model_validate_json(file.read_bytes()) if file.exists() else None
        state = memory.state()
        return StoredPart(memory.id, layout, state.lengths, state.sequence)


def _claimed(folder: Path | None) -> Folder:
    """A temporary folder, or the first folder in ``folder`` that no other node of this machine uses.

    Raises:
        OSError: the folder cannot be used.
    """
    if folder is None:
        return Folder(None)
    for number in range(MAX_FOLDERS):
        try:
            return Folder(folder / str(number))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    raise OSError(errno.EBUSY, f"{MAX_FOLDERS} nodes use {folder}")


def _fetched(rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Key and value, each an array or a reference to one in Ray's object store."""
    key, value = (ray.get(array) if isinstance(array, ray.ObjectRef) else array for array in rows)
    return key, value


def _write(path: Path, text: str) -> None:
    """Replace a file, so that a process killed at any moment leaves the old one or the new one."""
    scratch = path.with_suffix(".new")
    with scratch.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
