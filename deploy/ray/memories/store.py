"""The memories of a cluster for a replica of the service, in place of those of one machine."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import ray

from deploy.ray.memories import catalogue
from deploy.ray.memories.cluster import MemorySettings
from deploy.ray.memories.inputs import ClusterInputs
from deploy.ray.memories.layout import Holder, Snapshot, Totals
from deploy.ray.memories.memory import CALL_S, ClusterMemory
from service.base.errors import Gone, NotFound, NotReady
from service.memories.memory import Description
from service.memories.stored import Reference
from service.model.model import Model

SMALL_BYTES = 1 << 16  # arrays up to this size go with a call, larger ones by Ray's object store


class ClusterStore:
    """The memories of the cluster, with the interface of ``MemoryStore``, which has those of a machine."""

    is_remote = True

    def __init__(self, settings: MemorySettings) -> None:
        self._settings = settings
        self._catalogue = catalogue.start(settings)
        self.queries = self.misses = 0
        self.totals = Totals("", 0, 0, 0, 0)
        self.sweep()

    @property
    def limit(self) -> int:
        """The limit on the bytes of all memories, on all nodes."""
        return self.totals.limit

    @property
    def evictions(self) -> int:
        return self.totals.evictions

    @property
    def counted(self) -> int:
        return self.totals.count

    @property
    def counted_bytes(self) -> int:
        return self.totals.used

    def close(self) -> None:
        """Do nothing: the memories belong to the cluster."""

    def sweep(self) -> None:
        """Update the totals of the memories, and send the settings to a new catalogue."""
        totals: Totals = self.call("totals")
        if totals.instance != self.totals.instance:
            self.call("configure", self._settings)
            totals = self.call("totals")
        self.totals = totals

    def create(
        self, description: Description, key: np.ndarray, value: np.ndarray, lengths: tuple[int, ...]
    ) -> ClusterMemory:
        """Store ``key`` [*lead, n, d_k] and ``value`` [*lead, n, d_v]; row i of the batch has ``lengths[i]`` keys.

        Raises:
            NoRoom: the nodes have no room.
            NotReady: a node was lost in the meantime.
        """
        n = key.shape[-2]
        count = max(1, -(-description.nbytes(n) // self._settings.part_bytes))
        step = -(-n // count)
        parts = []
        for start in range(0, n, step):
            starts = tuple(min(start, length) for length in lengths)
            own = tuple(min(start + step, length) - first for length, first in zip(lengths, starts, strict=True))
            rows = [sent(array[..., start : start + step, :]) for array in (key, value)]
            parts.append((starts, own, rows))
        return ClusterMemory(self.call("create", description, parts))

    def get(self, id: str, owner: str | None) -> ClusterMemory:
        """The memory of ``owner`` with this id, or that of any owner for None.

        Raises:
            NotFound: the memory does not exist, has expired, or belongs to another owner.
            PartsMissing: all nodes that have its length are lost.
        """
        try:
            return ClusterMemory(self.call("get", id, owner))
        except NotFound:
            self.misses += 1
            raise

    def all(self, owner: str | None) -> Iterator[ClusterMemory | tuple[str, Gone]]:
        """The memories of ``owner``, or all for None; for one that cannot be described, its id and the reason."""
        self.sweep()
        for listed in self.call("all", owner):
            yield ClusterMemory(listed) if isinstance(listed, Snapshot) else (listed[0], Gone(listed[1]))

    def find(self, contents: Collection[str], owner: str) -> ClusterMemory | None:
        """A memory of ``owner`` that was stored with one of ``contents``, and to which nothing was appended since."""
        for memory in self.all(owner):
            is_whole = isinstance(memory, ClusterMemory) and not memory.snapshot.appends
            if isinstance(memory, ClusterMemory) and is_whole and memory.description.content in contents:
                return memory
        return None

    def delete(self, id: str, owner: str | None) -> None:
        """Delete a memory; raises NotFound."""
        self.call("delete", id, owner)

    def append(
        self,
        memory: ClusterMemory,
        key: np.ndarray,
        value: np.ndarray,
        expected: Sequence[int] | None,
        counts: Sequence[int],
    ) -> None:
        """Append to row i the first ``counts[i]`` of the new keys and values, all or none.

        Raises:
            Conflict: the rows do not have the ``expected`` lengths.
            NotFound, NoRoom, NotReady: it was deleted, the nodes have no room, or a node was lost.
        """
        dtype = memory.description.dtype
        rows = [sent(np.asarray(array, dtype)) for array in (key, value)]
        memory.snapshot = self.call("append", memory.id, None, expected, tuple(counts), rows)

    def inputs(self, memory: ClusterMemory, reference: Reference, model: Model) -> "ClusterInputs":
        """The inputs of a request to ``model`` that ``memory`` has."""
        return ClusterInputs(memory, reference, model, self)

    def drop(self, id: str, holder: Holder) -> None:
        """Tell the catalogue that ``holder`` cannot read its part, without waiting for an answer."""
        self._catalogue.drop.remote(id, holder)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call ``method`` of the catalogue; return its result.

        Raises:
            NotReady: the catalogue does not answer, because its node is lost; Ray starts another.
            HeedError: the catalogue's own.
        """
        try:
            return ray.get(getattr(self._catalogue, method).remote(*arguments), timeout=CALL_S)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except (ray.exceptions.RayError, TimeoutError):
            raise NotReady("the catalogue of memories does not respond; try again later") from None


def sent(array: np.ndarray) -> Any:
    """An array as an argument of a call."""
    array = np.ascontiguousarray(array)
    return array if array.nbytes <= SMALL_BYTES else ray.put(array)
