"""The memories of a machine, one folder each, shared by all workers: stored, found, evicted, deleted.

The folder is the only state that workers share: there is no index that could disagree with it.
"""

import errno
import fcntl
import logging
import os
import re
import resource
import secrets
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from service.base.errors import Gone, NoRoom, NotFound
from service.base.messages import size_words, sizes_words
from service.memories.folder import HIDDEN, Folder
from service.memories.memory import DESCRIPTION, STATE, Appended, Description, Memory, allocate, checksums, not_found
from service.memories.state import State, StateFile
from service.memories.stored import Reference, StoredInputs
from service.model.model import Model

log = logging.getLogger("heed")

ID = re.compile(r"[A-Za-z0-9_-]{24}")
ID_BYTES = 18  # random, so that ids cannot be guessed
UNFINISHED = re.compile(r"\.[A-Za-z0-9_-]{24}(\.[0-9a-f]{8})?")  # a memory that is being written or deleted
DELETED = re.compile(r"\..*\.[0-9a-f]{8}")  # one that is being deleted
LOCK = ".lock"
BLOCK_BYTES = 512  # that stat counts in
OVERHEAD_BYTES = 5 * 4096  # of a memory on the disk: its folder, and the last pages of its four files
MTIME_STEP_NS = 1_000_000_000  # a folder that changed less long ago may have changed again at the same time
MAX_MEMORIES = 1024  # at one time: each is looked at whenever one is stored or listed, and deleted at the end
MAX_OPEN = 256  # memories that a process keeps open, where it may open enough files
DESCRIPTORS_SHARE = 16  # of all descriptors, one for a memory, which takes 4: at most a quarter for memories


def new_id() -> str:
    """A random id, without hyphens: a command would take an id that begins with one for an option."""
    return secrets.token_urlsafe(ID_BYTES).replace("-", "_")


class MemoryStore:
    """The memories in ``folder``, of at most ``limit`` bytes together. To be made before the folder is used.

    Those that outlive this server are on the disk before they are confirmed.
    """

    is_remote = False  # a memory is found without waiting for another machine
    max_memories: float = MAX_MEMORIES

    def __init__(self, folder: Folder, limit: int) -> None:
        self._folder = folder
        self.folder = folder.path
        self.limit = limit
        self._open: OrderedDict[str, Memory] = OrderedDict()
        self._open_lock = threading.Lock()
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max_open = MAX_OPEN if descriptors < 0 else max(1, min(MAX_OPEN, descriptors // DESCRIPTORS_SHARE))
        self._descriptions: dict[str, Description | None] = {}  # of the last sweep; None for a damaged one
        self._sizes: dict[str, tuple[int, int]] = {}  # of each folder: when its files changed last, in ns, and bytes
        self.queries = self.misses = self.evictions = 0
        self.counted = self.counted_bytes = 0  # memories, and bytes of their files, at the last sweep
        for entry in self._entries():
            if UNFINISHED.fullmatch(entry.name):  # a server was killed
                shutil.rmtree(entry, ignore_errors=True)

    def close(self) -> None:
        """Delete a temporary folder; to be called by the process that opened the store."""
        self._folder.close()

    def create(self, description: Description, key: np.ndarray, value: np.ndarray, lengths: tuple[int, ...]) -> Memory:
        """Store ``key`` [*lead, n, d_k] and ``value`` [*lead, n, d_v], in the description's dtype.

        Row i of the batch has ``lengths[i]`` keys.

        Raises:
            NoRoom: the memories in use leave no room for it, or the disk is full.
        """
        try:
            self._folder.claim()
        except OSError as error:
            hint = "" if self._folder.is_kept else ": name one in HEED_MEMORIES"
            raise NoRoom(f"the folder of the memories cannot be made ({error.strerror}){hint}") from None
        id = new_id()
        scratch, capacity = self.folder / f"{HIDDEN}{id}", key.shape[-2]
        state = State(0, 0, capacity, checksums(description, (key, value), [0] * len(lengths), lengths), lengths)
        try:
            with self._lock():
                self.make_room(description.nbytes(capacity) + OVERHEAD_BYTES, 1)
                scratch.mkdir()
                allocate(scratch, description, state)
            for name, array in (("key", key), ("value", value)):
                with (scratch / f"{name}.0").open("r+b") as file:
                    array.tofile(file)
            StateFile.create(scratch / STATE, state)
            (scratch / DESCRIPTION).write_text(description.model_dump_json())
            if self._folder.is_kept:
                for path in (*scratch.iterdir(), scratch):
                    _sync(path)
            with self._lock():  # else another process may evict it before it is open here
                scratch.rename(self.folder / id)
                memory = Memory(self.folder / id, is_verified=True)
            if self._folder.is_kept:
                _sync(self.folder)
        except BaseException as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise _translated(error) from None
        return self._keep(memory)

    def get(self, id: str, owner: str | None) -> Memory:
        """The memory of ``owner`` with this id; None may have any.

        Raises:
            NotFound: there is none, or it has expired, or another owner has it.
            Gone: its files are damaged.
        """
        try:
            return self._keep(self._find(id, owner))
        except NotFound:
            self.misses += 1
            raise

    def _find(self, id: str, owner: str | None) -> Memory:
        memory = self._open.get(id)
        if memory is None or not memory.exists():
            with self._open_lock:
                self._open.pop(id, None)
            if not ID.fullmatch(id):
                raise not_found(id)
            memory = Memory(self.folder / id)
            self._folder.claim()
        if memory.is_expired or owner not in (None, memory.description.owner):
            raise not_found(id)
        return memory

    def all(self, owner: str | None) -> Iterator[Memory | tuple[str, Gone]]:
        """The memories of ``owner``, or of all for None; of a damaged one (without owner) its id and the reason."""
        for id in sorted(self._ids()):
            try:
                memory = self._find(id, owner)
                memory.state()
                yield memory
            except Gone as error:
                if owner is None:
                    yield id, error
            except NotFound:
                continue

    def find(self, contents: Collection[str], owner: str) -> Memory | None:
        """A memory of ``owner`` to which nothing was appended since one of ``contents`` was stored in it."""
        for id in self._ids():
            description = self._description(id)
            if description is None or description.owner != owner or description.content not in contents:
                continue
            with suppress(Gone, NotFound):
                if not (memory := self._find(id, owner)).state().sequence:
                    return memory
        return None

    def delete(self, id: str, owner: str | None) -> None:
        """Delete a memory; requests that use it go on.

        Raises:
            NotFound: there is none.
        """
        with suppress(Gone):  # the owner of a damaged memory is not known: every client may delete it by its id
            self.get(id, owner)
        self._remove(id)

    def make_room(self, size: int, new: int = 0) -> None:
        """Evict the memories used least recently until ``size`` bytes fit, and ``new`` memories.

        The caller holds the store's lock.

        Raises:
            NoRoom: they do not fit.
        """
        if size > self.limit:
            got, most = sizes_words(size, self.limit)
            raise NoRoom(
                f"a memory of {got} exceeds the limit of all memories, {most} (memories_bytes); store fewer keys"
            )
        sizes, chosen = self._folder_sizes(), dict[str, int]()
        used, count = sum(sizes.values()), sum(not DELETED.fullmatch(name) for name in sizes)
        surplus = min(count + new - self.max_memories, 2 * new)  # a folder of 0.1.0 may have more, and shrinks slowly
        with ExitStack() as locks:
            for id in self._least_recently_used() if used + size > self.limit or surplus > 0 else ():
                if self._lock_unused(id, locks):
                    chosen[id] = _folder_bytes(self.folder / id)
                    used -= chosen[id]
                    if used + size <= self.limit and len(chosen) >= surplus:
                        break
            if len(chosen) < surplus:
                raise NoRoom(f"all {self.max_memories} memories are in use; try again later")
            if used + size > self.limit:
                raise NoRoom(
                    f"there is no room for {size_words(size)}: requests use memories of {size_words(used)}, and the "
                    f"limit is {size_words(self.limit)} (memories_bytes); try again later"
                )
            hidden = []
            for id, freed in chosen.items():
                with suppress(FileNotFoundError):  # another process was first
                    hidden.append(self._hide(id))
                self.evictions += 1
                log.info("evicted memory %s, %d bytes", id, freed)
        for folder in hidden:  # without the locks, for which a request may wait
            shutil.rmtree(folder, ignore_errors=True)

    def appending(
        self,
        memory: Memory,
        key: np.ndarray,
        value: np.ndarray,
        expected: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        field: str = "memory",
        wait: bool = True,
    ) -> AbstractContextManager[Appended]:
        """Append to ``memory``, as ``Memory.appending``. What it grows by is within the limit of all memories."""
        return memory.appending(key, value, lambda size: self.growing(memory, size), expected, counts, field, wait)

    def append(
        self,
        memory: Memory,
        key: np.ndarray,
        value: np.ndarray,
        expected: Sequence[int] | None,
        counts: Sequence[int],
        wait: bool = False,
    ) -> None:
        """Append to ``memory``, and nothing else, for a request whose field ``at`` says the ``expected`` lengths.

        Raises:
            AppendInProgress: there is another append, and it should not ``wait``.
            Exception: as ``Memory.appending``.
        """
        with self.appending(memory, key, value, expected, counts, "at", wait):
            pass

    def inputs(self, memory: Memory, reference: Reference, model: Model) -> StoredInputs:
        """The inputs of a request to ``model`` that ``memory`` has."""
        return StoredInputs(memory, reference, model, self)

    @contextmanager
    def growing(self, memory: Memory, size: int) -> Iterator[None]:
        """Room for files of ``size`` bytes that will replace those of ``memory``.

        Raises:
            NoRoom: there is none.
            NotFound: the memory was deleted.
        """
        try:
            with memory.use(), self._lock():
                self.make_room(size)
                yield
        except FileNotFoundError:
            raise not_found(memory.id) from None
        except OSError as error:
            raise _translated(error) from None

    def used_bytes(self) -> int:
        """Bytes of all memories on the disk, including unfinished ones."""
        return sum(self._folder_sizes().values())

    def _folder_sizes(self) -> dict[str, int]:
        """The bytes of each folder, known as long as no file was added to it or removed."""
        sizes, now = {}, time.time_ns()
        for entry in self._entries():
            if ID.fullmatch(entry.name) or UNFINISHED.fullmatch(entry.name):
                with suppress(OSError):  # deleted since
                    changed = entry.stat().st_mtime_ns
                    known = self._sizes.get(entry.name)
                    if known is None or known[0] != changed or now - changed < MTIME_STEP_NS:
                        known = changed, _folder_bytes(Path(entry))
                    sizes[entry.name] = known
        self._sizes = sizes
        return {name: size for name, (_, size) in sizes.items()}

    def sweep(self) -> None:
        """Delete expired memories, close those that other processes deleted, and count the rest."""
        now, ids = time.time(), self._ids()
        self._descriptions = {id: self._description(id) for id in ids}
        for id, description in self._descriptions.items():
            if description is not None and description.expires is not None and now > description.expires:
                self._remove(id)
        for memory in [*self._open.values()]:
            if not memory.exists():  # else the files that another process deleted stay on the disk
                with self._open_lock:
                    self._open.pop(memory.id, None)
        self.counted, self.counted_bytes = len(ids), self.used_bytes()

    def _description(self, id: str) -> Description | None:
        """The description of a memory, which never changes; None if it is damaged, or the memory was deleted."""
        if id not in self._descriptions:
            try:
                content = (self.folder / id / DESCRIPTION).read_bytes()
                self._descriptions[id] = Description.model_validate_json(content)
            except OSError:
                return None
            except ValidationError:
                self._descriptions[id] = None
        return self._descriptions[id]

    def _ids(self) -> Sequence[str]:
        return [entry.name for entry in self._entries() if ID.fullmatch(entry.name)]

    def _entries(self) -> Sequence[os.DirEntry[str]]:
        try:
            return [*os.scandir(self.folder)]
        except (FileNotFoundError, NotADirectoryError):  # there is none, or somebody has deleted it
            return []

    def _least_recently_used(self) -> Sequence[str]:
        times = {}
        for id in self._ids():
            with suppress(OSError):
                times[id] = os.stat(f"{self.folder}/{id}/{DESCRIPTION}").st_mtime
        return sorted(times, key=lambda id: times[id])

    def _lock_unused(self, id: str, locks: ExitStack) -> bool:
        """Keep requests of all processes from using a memory until ``locks`` end; False if one uses it."""
        with ExitStack() as own:
            try:
                fcntl.flock(
                    own.enter_context((self.folder / id / DESCRIPTION).open("rb")), fcntl.LOCK_EX | fcntl.LOCK_NB
                )
            except OSError:
                return False
            locks.push(own.pop_all())
            return True

    def _remove(self, id: str) -> None:
        with suppress(FileNotFoundError):  # another process was first
            shutil.rmtree(self._hide(id), ignore_errors=True)

    def _hide(self, id: str) -> Path:
        with self._open_lock:
            self._open.pop(id, None)
        return (self.folder / id).rename(self.folder / f"{HIDDEN}{id}.{secrets.token_hex(4)}")

    def _keep(self, memory: Memory) -> Memory:
        with self._open_lock:
            self._open[memory.id] = memory
            self._open.move_to_end(memory.id)
            while len(self._open) > self._max_open:
                self._open.popitem(last=False)
        return memory

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.folder / LOCK).open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _folder_bytes(folder: Path) -> int:
    """Bytes of a folder and its files on the disk."""
    try:
        return sum(BLOCK_BYTES * path.stat().st_blocks for path in (folder, *os.scandir(folder)))
    except OSError:  # deleted since
        return 0


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _translated(error: BaseException) -> BaseException:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoRoom("the disk of the memories is full")
    return error
