"""The catalogue of memories and the nodes that have them: one actor for the whole cluster.

It uses no disk. Every node stores the layouts of the memories whose parts it stores. When the node of the
catalogue is lost, Ray starts a new one, which reads them.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from deploy.ray.memories.cluster import ANSWER_S, NAME, NAMESPACE, Cluster, MemorySettings, gathered
from deploy.ray.memories.layout import Holder, Layout, PartLayout, Snapshot, Totals, missing
from deploy.ray.memories.node import StoredPart
from service.base.errors import Conflict, NoRoom, NotReady, PartsMissing
from service.memories.memory import Description, not_found
from service.memories.store import new_id

log = logging.getLogger("heed")

WATCH_S = 1.0  # interval between checks of the cluster's nodes
IDLE_S = 10.0  # a memory that was used more recently is not evicted


@dataclass(slots=True)
class _Memory:
    """A memory. ``lengths`` is None while all nodes with its last part are absent."""

    layout: Layout
    lengths: tuple[int, ...] | None
    appends: int = 0
    used: float = field(default_factory=time.monotonic)  # last
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while its layout or lengths change


class Catalogue:
    """All memories of the cluster. Its methods are called by every replica of the service."""

    def __init__(self, settings: MemorySettings) -> None:
        self._settings = settings
        self._cluster = Cluster()
        self._memories: dict[str, _Memory] = {}
        self._deleted: set[str] = set()
        self._evictions = 0
        self._instance = secrets.token_hex(8)
        self._starting = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def configure(self, settings: MemorySettings) -> None:
        """Set other settings for the parts that are stored from now on."""
        self._settings = settings
        await self._ready()

    async def _ready(self) -> None:
        """Return when every node has reported its parts. Before that, a memory that is unknown here may exist."""
        async with self._starting:
            if self._watch is None:
                until = time.monotonic() + ANSWER_S
                await self._look()
                while not self._cluster.is_complete and time.monotonic() < until:
                    await asyncio.sleep(WATCH_S / 10)
                    await self._look()
                self._watch = asyncio.create_task(self._repeat())

    async def create(
        self, description: Description, parts: Sequence[tuple[tuple[int, ...], tuple[int, ...], list[Any]]]
    ) -> Snapshot:
        """Store a memory whose parts have these starts, lengths, and references to their keys and values.

        Raises:
            NoRoom: the nodes have no room.
        """
        await self._ready()
        layout = Layout(id=new_id(), version=0, description=description, parts=())
        ends = [0] * description.rows
        try:
            for starts, lengths, rows in parts:
                holders = await self._stored(layout, lengths, rows)
                layout = layout.with_part(len(layout.parts), PartLayout(starts=starts, holders=holders))
                ends = [start + length for start, length in zip(starts, lengths, strict=True)]
            if await self._publish(layout):
                raise NotReady("a node was lost while it stored a part; nothing is stored")
        except BaseException:
            await self._forget(layout)
            raise
        self._memories[layout.id] = memory = _Memory(layout, tuple(ends))
        return self._snapshot(memory)

    async def get(self, id: str, owner: str | None) -> Snapshot:
        """The memory of ``owner`` with this id; raises NotFound, PartsMissing."""
        memory = await self._find(id, owner)
        return self._snapshot(memory)

    async def all(self, owner: str | None) -> list[Snapshot | tuple[str, str]]:
        """The memories of ``owner``, or all for None; for one of unknown length, its id and the reason."""
        await self._ready()
        listed: list[Snapshot | tuple[str, str]] = []
        for id, memory in sorted(self._memories.items()):
            if owner in (None, memory.layout.description.owner) and not _is_expired(memory):
                try:
                    listed.append(self._snapshot(memory))
                except PartsMissing as error:
                    listed.append((id, error.detail))
        return listed

    async def append(
        self,
        id: str,
        owner: str | None,
        expected: Sequence[int] | None,
        counts: Sequence[int],
        rows: list[Any],
    ) -> Snapshot:
        """Append the first ``counts[i]`` of new keys and values to each row i, all or none.

        Raises:
            Conflict: the rows do not have the ``expected`` lengths.
            NotFound, PartsMissing, NoRoom: as ``get`` and ``create``.
        """
        memory = await self._find(id, owner)
        async with memory.lock:
            await self._find(id, owner)
            lengths = self._snapshot(memory).lengths
            if expected is not None and lengths != tuple(expected):
                raise Conflict(f"expected a memory of lengths {[*expected]}, got {[*lengths]}", "memory")
            new = tuple(length + count for length, count in zip(lengths, counts, strict=True))
            if not await self._append_to_last(memory, lengths, new, counts, rows):
                part = PartLayout(starts=lengths, holders=await self._stored(memory.layout, tuple(counts), rows))
                layout = memory.layout.with_part(len(memory.layout.parts), part)
                failed = await self._publish(layout)
                if any(holder.store in failed for holder in part.holders):
                    await self._forget(layout.model_copy(update={"parts": (part,)}))
                    raise NotReady("a node was lost while it stored the new keys; nothing was appended", "memory")
                memory.layout = layout
            memory.lengths, memory.appends = new, memory.appends + 1
            return self._snapshot(memory)

    async def delete(self, id: str, owner: str | None) -> None:
        """Delete a memory; raises NotFound."""
        await self._remove(await self._find(id, owner))

    async def drop(self, id: str, holder: Holder) -> None:
        """Remove ``holder``, which cannot read its part, if the part has other holders."""
        memory = await self._find(id, None)
        async with memory.lock:
            for place, part in enumerate(memory.layout.parts):
                if holder in part.holders and len(part.holders) > 1:
                    await self._without(memory, place, {holder})

    async def totals(self) -> Totals:
        statuses = self._cluster.statuses
        used, limit = sum(status.used for status in statuses), sum(status.limit for status in statuses)
        return Totals(self._instance, len(self._memories), used, limit, self._evictions)

    async def _find(self, id: str, owner: str | None) -> _Memory:
        await self._ready()
        memory = self._memories.get(id)
        if memory is None or _is_expired(memory) or owner not in (None, memory.layout.description.owner):
            raise not_found(id)
        memory.used = time.monotonic()
        return memory

    def _snapshot(self, memory: _Memory) -> Snapshot:
        if memory.lengths is None:
            raise PartsMissing("the node with the memory's last keys is lost, so its length is unknown", "memory")
        stores = {holder.store for part in memory.layout.parts for holder in part.holders}
        nodes = {name: actor for name, actor in self._cluster.actors.items() if name in stores}
        return Snapshot(memory.layout, memory.lengths, memory.appends, nodes)

    async def _append_to_last(
        self,
        memory: _Memory,
        lengths: tuple[int, ...],
        new: tuple[int, ...],
        counts: Sequence[int],
        rows: list[Any],
    ) -> bool:
        """Append to the last part if it has room, and remove the holders that fail; return False without room."""
        layout, place = memory.layout, len(memory.layout.parts) - 1
        last, local = layout.parts[place], layout.part(place, lengths).lengths
        longest = max(end - start for start, end in zip(last.starts, new, strict=True))
        if max(local) and layout.description.nbytes(longest) > self._settings.part_bytes:
            return False
        actors = self._cluster.actors
        there = [holder for holder in last.holders if holder.store in actors]
        if not there:
            raise missing(layout.part(place, lengths))
        results = await gathered(actors[holder.store].append.remote(holder.id, local, counts, rows) for holder in there)
        failed = [(holder, error) for holder, error in zip(there, results, strict=True) if error is not None]
        for holder, error in failed:
            log.warning("memory %s: store %s cannot append: %s", layout.id, holder.store, error)
        if len(failed) == len(there):
            if all(isinstance(error, NoRoom) for _, error in failed):
                return False
            raise missing(layout.part(place, lengths))
        lost = {*last.holders}.difference(there) | {holder for holder, _ in failed}
        if lost:
            await self._without(memory, place, lost)
        return True

    async def _without(self, memory: _Memory, place: int, lost: Collection[Holder]) -> None:
        """Remove ``lost`` from the holders of a part, and delete their copies of it."""
        await self._hold(memory, place, [one for one in memory.layout.parts[place].holders if one not in lost])
        actors = self._cluster.actors
        await gathered(actors[store].delete.remote([id]) for store, id in lost if store in actors)

    async def _hold(self, memory: _Memory, place: int, holders: Sequence[Holder]) -> None:
        """Set the holders of a part to ``holders``, in the layouts of all nodes."""
        part = PartLayout(starts=memory.layout.parts[place].starts, holders=tuple(holders))
        layout = memory.layout.with_part(place, part)
        await self._publish(layout)
        memory.layout = layout

    async def _stored(self, layout: Layout, lengths: tuple[int, ...], rows: list[Any]) -> tuple[Holder, ...]:
        """Store another part of ``layout`` on one node for each of its copies."""
        description = layout.description
        size = description.nbytes(max(1, *lengths))
        holders: list[Holder] = []
        tried: set[str] = set()
        while len(holders) < self._settings.copies:
            name = self._cluster.choose(size, tried, layout)
            if name is None:
                if holders or not await self._evict():
                    break
                tried.clear()
                continue
            tried.add(name)
            (answer,) = await gathered([self._cluster.actors[name].store.remote(description, lengths, rows)])
            if isinstance(answer, str):
                holders.append(Holder(name, answer))
            else:
                log.warning("store %s cannot store a part: %s", name, answer)
        if not holders:
            raise NoRoom(f"no node has room for {size:,} bytes beside the memories in use")
        return tuple(holders)

    async def _evict(self) -> bool:
        """Delete the least recently used memory, unless it was used within ``IDLE_S``; return whether that was done."""
        oldest = min(self._memories.values(), key=lambda memory: memory.used, default=None)
        if oldest is None or time.monotonic() - oldest.used < IDLE_S:
            return False
        log.info("evicted memory %s", oldest.layout.id)
        self._evictions += 1
        await self._remove(oldest)
        await self._cluster.count()
        return True

    async def _remove(self, memory: _Memory) -> None:
        id = memory.layout.id
        self._memories.pop(id, None)
        self._deleted.add(id)
        await self._forget(memory.layout)

    async def _forget(self, layout: Layout) -> None:
        """Delete all parts of ``layout``."""
        actors = self._cluster.actors
        ids = _by_store(layout)
        await gathered(actors[store].delete.remote(own) for store, own in ids.items() if store in actors)

    async def _publish(self, layout: Layout) -> set[str]:
        """Send the new layout to every node with a part of it; return the stores that could not be reached.

        If they come back, their copy is older than the others'.
        """
        actors, ids = self._cluster.actors, _by_store(layout)
        there = [store for store in ids if store in actors]
        answers = await gathered(actors[store].set_layout.remote(ids[store], layout) for store in there)
        return ids.keys() - {store for store, answer in zip(there, answers, strict=True) if answer is None}

    async def _repeat(self) -> None:
        while True:
            try:
                await asyncio.sleep(WATCH_S)
                await self._look()
                for memory in [*self._memories.values()]:
                    if _is_expired(memory):
                        await self._remove(memory)
                    else:
                        await self._copy_again(memory)
            except Exception:
                log.exception("the catalogue of memories looks again in %g s", WATCH_S)

    async def _look(self) -> None:
        """Record new and lost nodes, and the parts in new stores."""
        stores = await self._cluster.look(self._settings)
        for layout in (part.layout for _, parts in stores for part in parts if part.layout):
            known = self._memories.get(layout.id)
            if known is None:
                if layout.id not in self._deleted:
                    self._memories[layout.id] = _Memory(layout, None)
            elif known.layout.version < layout.version and not known.lock.locked():
                known.layout, known.lengths = layout, None
        for store, parts in stores:
            await self._delete_stale(store, parts)
        reports = {Holder(store, part.id): part for store, parts in stores for part in parts}
        for memory in [*self._memories.values()] if reports else ():
            last = memory.layout.parts[-1].holders
            if any(holder in reports for holder in last):
                async with memory.lock:
                    await self._measure(memory, {holder: reports[holder] for holder in last if holder in reports})

    async def _delete_stale(self, store: str, parts: Sequence[StoredPart]) -> None:
        """Delete the parts of a new store that no longer belong to a memory."""
        stale = []
        for part in parts:
            memory = self._memories.get(part.layout.id) if part.layout else None
            if memory is None or all(Holder(store, part.id) not in one.holders for one in memory.layout.parts):
                stale.append(part.id)
        if stale:
            await gathered([self._cluster.actors[store].delete.remote(stale)])

    async def _measure(self, memory: _Memory, holders: Mapping[Holder, StoredPart]) -> None:
        """Set the lengths of the last part from new ``holders`` of it.

        If they differ, the catalogue ended during an append, which was not confirmed; the appended keys are kept.
        """
        layout, last = memory.layout, memory.layout.parts[-1]
        best = max((part.lengths for part in holders.values()), key=sum)
        if memory.lengths is not None:
            best = tuple(length - start for start, length in zip(last.starts, memory.lengths, strict=True))
        memory.lengths = tuple(start + length for start, length in zip(last.starts, best, strict=True))
        memory.appends = max(memory.appends, layout.version - len(layout.parts), *(p.appends for p in holders.values()))
        if shorter := {holder for holder, part in holders.items() if part.lengths != best}:
            await self._without(memory, len(layout.parts) - 1, shorter)

    async def _copy_again(self, memory: _Memory) -> None:
        """Replace the copies of lost nodes, if other nodes have room."""
        async with memory.lock:
            for place, part in enumerate(memory.layout.parts):
                there = [holder for holder in part.holders if holder.store in self._cluster.actors]
                if memory.lengths is not None and 0 < len(there) < self._settings.copies:
                    await self._copy(memory, place, there, memory.layout.part(place, memory.lengths).lengths)

    async def _copy(self, memory: _Memory, place: int, holders: Sequence[Holder], lengths: Sequence[int]) -> None:
        """Copy a part from one of ``holders`` to another node, if one has room."""
        description, actors = memory.layout.description, self._cluster.actors
        name = self._cluster.choose(
            description.nbytes(max(1, *lengths)), [holder.store for holder in holders], memory.layout
        )
        if name is None:
            return
        store, id = holders[0]
        (copy,) = await gathered([actors[name].copy.remote(actors[store], id, description, tuple(lengths))])
        if isinstance(copy, str):
            await self._hold(memory, place, [*holders, Holder(name, copy)])


def start(settings: MemorySettings) -> Any:
    """The cluster's catalogue, which is started with these settings if it does not run yet."""
    options = {
        "name": NAME,
        "namespace": NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": -1,
    }
    return ray.remote(Catalogue).options(**options).remote(settings)


def _by_store(layout: Layout) -> dict[str, list[str]]:
    """The ids of a layout's parts in each store."""
    ids: dict[str, list[str]] = {}
    for part in layout.parts:
        for store, id in part.holders:
            ids.setdefault(store, []).append(id)
    return ids


def _is_expired(memory: _Memory) -> bool:
    expires = memory.layout.description.expires
    return expires is not None and time.time() > expires
