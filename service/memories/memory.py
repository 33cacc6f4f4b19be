"""One stored memory: the files in its folder, mapped by every process that uses it.

    memory.json            the description, which never changes; its modification time is the memory's last use
    state                  lengths and files, which appends change (state.py)
    key.G, value.G         the numbers of generation G: [*lead, capacity, d_k] and [*lead, capacity, d_v]

A lock on ``state`` serialises appends. A shared lock on ``memory.json`` says that a request uses the memory. Keys that
were appended never change, so readers need no lock.
"""

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from service.base.errors import Conflict, Gone, NotFound
from service.memories.state import State, StateFile, checksum

DESCRIPTION, STATE = "memory.json", "state"
TOUCH_S = 1.0  # between two updates of the time of the last use
GROWTH = 1.5  # of the capacity, when it is full
MIN_GROWTH = 256  # keys
MAX_ROWS = 4096  # of the batch: the length of each is kept, compared and listed by itself
MAX_TIME = 2e10  # seconds since 1970, in the year 2603; pydantic reads larger numbers as milliseconds


class Description(BaseModel):
    """The properties of a memory that never change.

    ``lead`` are the axes before those of the keys; ``batch_axis`` is the one among them whose rows may have different
    lengths. ``block`` and ``version`` name the model whose projections the keys and values are, if they are.
    """

    model_config = ConfigDict(frozen=True)

    owner: str
    block: str | None
    version: int | None
    dtype: Literal["float32", "float16"]
    lead: tuple[PositiveInt, ...]
    batch_axis: NonNegativeInt
    d_k: PositiveInt
    d_v: PositiveInt
    content: str  # a hash of the keys and values stored first
    created: Annotated[float, Field(ge=0, le=MAX_TIME)]  # seconds since 1970, as is expires
    expires: Annotated[float, Field(ge=0, le=MAX_TIME)] | None

    @model_validator(mode="after")
    def _has_batch_axis(self) -> Self:
        if self.batch_axis >= len(self.lead):
            raise ValueError("batch_axis is none of lead")
        return self

    @property
    def rows(self) -> int:
        return self.lead[self.batch_axis]

    def row(self, array: np.ndarray, row: int | slice) -> np.ndarray:
        """Row ``row`` of the batch of keys or values, or some rows."""
        return array[(slice(None),) * self.batch_axis + (row,)]

    def nbytes(self, capacity: int) -> int:
        """The bytes of both files."""
        return prod(self.lead) * capacity * (self.d_k + self.d_v) * np.dtype(self.dtype).itemsize

    def shapes(self, capacity: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (*self.lead, capacity, self.d_k), (*self.lead, capacity, self.d_v)


Appended = tuple[State, np.ndarray, np.ndarray]  # the state, keys and values after an append


class AppendInProgress(Exception):
    """Another append to the memory has its lock."""


class Memory:
    """The memory in ``folder``.

    Raises:
        NotFound: there is none.
        Gone: its files are damaged.
    """

    def __init__(self, folder: Path, is_verified: bool = False) -> None:
        self.folder = folder
        try:
            self.description = Description.model_validate_json((folder / DESCRIPTION).read_bytes())
            self._state_file = StateFile(folder / STATE, self.description.rows)
            self._use_file = os.open(folder / DESCRIPTION, os.O_RDONLY)
        except FileNotFoundError:
            if (folder / DESCRIPTION).exists():
                raise Gone("the state of the memory is missing") from None
            raise not_found(folder.name) from None
        except (NotADirectoryError, IsADirectoryError, ValidationError):
            raise Gone("the description of the memory is damaged") from None
        weakref.finalize(self, os.close, self._use_file)
        self._lock = threading.Lock()
        self._uses = 0
        self._touched = -TOUCH_S
        self._files: tuple[tuple[int, int], np.ndarray, np.ndarray] | None = None  # generation, capacity; keys; values
        self.is_verified = is_verified

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def is_expired(self) -> bool:
        return self.description.expires is not None and time.time() > self.description.expires

    def exists(self) -> bool:
        """Whether it is still stored: another process may have deleted it."""
        return (self.folder / DESCRIPTION).exists()

    def state(self) -> State:
        """Raises Gone where it is damaged."""
        return self._state_file.read()

    def arrays(self) -> tuple[State, np.ndarray, np.ndarray]:
        """The state, and the keys [*lead, n, d_k] and values [*lead, n, d_v] of the longest row: views of the files.

        Raises:
            Gone: the files are damaged.
        """
        state = self.state()
        try:
            keys, values = (array[..., : state.length, :] for array in self._map(state))
        except Gone:
            if self.state().generation == state.generation:
                raise
            return self.arrays()  # an append replaced the files between the two looks
        keys.flags.writeable = values.flags.writeable = False
        return state, keys, values

    def verify(self) -> None:
        """Compare the numbers with their checksums.

        Raises:
            Gone: they differ.
        """
        state, *arrays = self.arrays()
        if checksums(self.description, arrays, [0] * len(state.lengths), state.lengths) != state.checksums:
            raise Gone("the numbers of the memory do not match their checksums")
        self.is_verified = True

    @contextmanager
    def appending(
        self,
        key: np.ndarray,
        value: np.ndarray,
        grow: Callable[[int], AbstractContextManager[None]],
        expected: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        field: str = "memory",
        wait: bool = True,
    ) -> Iterator[Appended]:
        """Append ``key`` [*lead, t, d_k] and ``value`` [*lead, t, d_v] when the context is left without an error.

        Inside, the state and the arrays are those after it. Of row i only the first ``counts[i]`` keys are appended.
        Larger files are made inside of ``grow``, which is called with their bytes. It waits for another append if
        ``wait``.

        Raises:
            AppendInProgress: there is another append.
            Conflict: the rows have not the ``expected`` lengths, which ``field`` of the request says.
            NotFound, Gone: it was deleted, or is damaged.
            Exception: any error of ``grow``.
        """
        with self._append_lock(wait):
            before = committed = self.state()
            if expected is not None and before.lengths != tuple(expected):
                raise Conflict(f"expected a memory of length {_words(expected)}, got {_words(before.lengths)}", field)
            counts = [key.shape[-2]] * self.description.rows if counts is None else counts
            lengths = tuple(length + count for length, count in zip(before.lengths, counts, strict=True))
            if max(lengths) > before.capacity:
                before = self._grown(before, max(lengths), grow)
            unused = before.generation  # of the files that are not those of the memory in the end
            try:
                after, keys, values = self._append(before, lengths, counts, key, value)
                yield after, keys[..., : after.length, :], values[..., : after.length, :]
                self._state_file.write(after)
                unused = committed.generation
            finally:
                if unused != committed.generation:
                    self._files = None  # another process may give this generation to files of its own
                if before.generation != committed.generation:
                    self._remove(unused)

    @contextmanager
    def use(self) -> Iterator[None]:
        """While the context is open the memory is not evicted.

        Raises:
            NotFound: it was deleted before.
        """
        with self._lock:
            self._uses += 1
            if self._uses == 1:
                fcntl.flock(self._use_file, fcntl.LOCK_SH)
        try:
            if not self.exists():
                raise not_found(self.id)
            self._touch()
            yield
        finally:
            with self._lock:
                self._uses -= 1
                if self._uses == 0:
                    fcntl.flock(self._use_file, fcntl.LOCK_UN)

    def _touch(self) -> None:
        now = time.monotonic()
        if now - self._touched > TOUCH_S:
            self._touched = now
            with suppress(FileNotFoundError):
                os.utime(self.folder / DESCRIPTION)

    @contextmanager
    def _append_lock(self, wait: bool) -> Iterator[None]:
        try:
            file = (self.folder / STATE).open("rb")
        except FileNotFoundError:
            raise not_found(self.id) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise AppendInProgress from None
            if not self.exists():
                raise not_found(self.id)
            yield

    def _map(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """The files of a generation, whole."""
        files = self._files
        if files is None or files[0] != (state.generation, state.capacity):
            arrays = []
            for name, shape in zip(("key", "value"), self.description.shapes(state.capacity), strict=True):
                path = self.folder / f"{name}.{state.generation}"
                try:
                    array = np.memmap(path, self.description.dtype, "r+", shape=shape)
                except (FileNotFoundError, ValueError):
                    damage = Gone(f"the file of the memory's {name}s is missing or damaged")
                    raise (damage if self.exists() else not_found(self.id)) from None
                arrays.append(array.view(np.ndarray))
            self._files = files = (state.generation, state.capacity), arrays[0], arrays[1]
        return files[1], files[2]

    def _append(
        self, before: State, lengths: tuple[int, ...], counts: Sequence[int], key: np.ndarray, value: np.ndarray
    ) -> tuple[State, np.ndarray, np.ndarray]:
        """The state after an append, which is not written yet, and the whole files."""
        keys, values = self._map(before)
        key, value = (array.astype(self.description.dtype, copy=False) for array in (key, value))
        rows: Iterable[tuple[int | slice, tuple[int, int]]] = enumerate(zip(before.lengths, counts, strict=True))
        if before.is_even and len(set(counts)) == 1:
            rows = [(slice(None), (before.lengths[0], counts[0]))]  # all at once
        for row, (start, count) in rows:
            for stored, new in ((keys, key), (values, value)):
                added = self.description.row(new, row)[..., :count, :]
                self.description.row(stored, row)[..., start : start + count, :] = added
        sums = checksums(self.description, (key, value), before.lengths, counts)
        sums = ((before.checksums[0] + sums[0]) % 2**64, (before.checksums[1] + sums[1]) % 2**64)
        return State(before.sequence + 1, before.generation, before.capacity, sums, lengths), keys, values

    def _grown(self, state: State, least: int, grow: Callable[[int], AbstractContextManager[None]]) -> State:
        """The state with files that have room for at least ``least`` keys; the old ones stay until it is written."""
        capacity = max(least, int(GROWTH * state.capacity), state.capacity + MIN_GROWTH)
        grown = State(state.sequence, state.generation + 1, capacity, state.checksums, state.lengths)
        try:
            with grow(self.description.nbytes(capacity)):
                allocate(self.folder, self.description, grown)
        except BaseException:
            self._remove(grown.generation)  # incomplete files on a full disk
            raise
        old, new = self._map(state), self._map(grown)
        for before, after in zip(old, new, strict=True):
            after[..., : state.length, :] = before[..., : state.length, :]
        return grown

    def _remove(self, generation: int) -> None:
        for name in ("key", "value"):
            (self.folder / f"{name}.{generation}").unlink(missing_ok=True)


def checksums(
    description: Description, arrays: Sequence[np.ndarray], starts: Sequence[int], counts: Sequence[int]
) -> tuple[int, int]:
    """The checksums of keys and values; of row i of the batch the first ``counts[i]``, whose places begin at
    ``starts[i]``.
    """
    key, value = (checksum(np.moveaxis(array, description.batch_axis, 0), starts, counts) for array in arrays)
    return key, value


def allocate(folder: Path, description: Description, state: State) -> None:
    """Make the files of a generation, with all their bytes on the disk.

    Raises:
        OSError: there is no room.
    """
    for name, shape in zip(("key", "value"), description.shapes(state.capacity), strict=True):
        path = folder / f"{name}.{state.generation}"
        path.unlink(missing_ok=True)  # of an append whose process was killed
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, prod(shape) * np.dtype(description.dtype).itemsize)


def not_found(id: str) -> NotFound:
    return NotFound(f"there is no memory {id!r}; it may have expired, or been evicted or deleted", "memory")


def _words(lengths: Sequence[int]) -> str:
    """Lengths for an error: one number where they are equal."""
    return str(lengths[0]) if len(set(lengths)) == 1 else f"rows of {', '.join(map(str, lengths[:8]))}"
