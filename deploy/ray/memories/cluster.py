"""The nodes of the Ray cluster for the catalogue: the actor that it starts on each, and the actor's store."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from deploy.ray.memories.layout import Layout
from deploy.ray.memories.node import MemoryNode, NodeStatus, StoredPart

log = logging.getLogger("heed")

NAMESPACE = "heed"
NAME = "memories"
ANSWER_S = 30.0  # a node that does not answer within this time counts as lost
CALLS = 8  # concurrent calls of a node


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """The settings of all nodes.

    Args:
        folder, limit: as for ``MemoryNode``.
        copies: number of copies of each part, on different nodes; fewer if the cluster has fewer nodes.
        part_bytes: approximate limit on the size of a part.
    """

    folder: Path | None
    limit: int
    copies: int
    part_bytes: int


@dataclass(slots=True)
class _Node:
    """The actor of a node, and its last status; None if it does not answer."""

    actor: Any
    status: NodeStatus | None = None


class Cluster:
    """The nodes with CPUs for actors."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}  # by Ray's id of the node

    @property
    def actors(self) -> dict[str, Any]:
        """The actors of the nodes that answer, by store."""
        return {node.status.store: node.actor for node in self._nodes.values() if node.status}

    @property
    def statuses(self) -> list[NodeStatus]:
        return [node.status for node in self._nodes.values() if node.status]

    @property
    def is_complete(self) -> bool:
        """Whether all nodes have answered."""
        return all(node.status for node in self._nodes.values())

    async def look(self, settings: MemorySettings) -> list[tuple[str, list[StoredPart]]]:
        """Start an actor on each new node, and remove lost nodes; return new stores with their parts."""
        alive = {
            node["NodeID"]
            for node in await asyncio.to_thread(ray.nodes)
            if node["Alive"] and node["Resources"].get("CPU")
        }
        for id in self._nodes.keys() - alive:
            log.warning("node %s is lost, with its parts of memories", id)
            del self._nodes[id]
        for id in alive - self._nodes.keys():
            self._nodes[id] = _Node(_actor(id, settings))
        new = await self._ask()
        stores = []
        for (node, status), parts in zip(
            new, await gathered(node.actor.parts.remote() for node, _ in new), strict=True
        ):
            if isinstance(parts, list):
                node.status = status
                stores.append((status.store, parts))
        return stores

    async def count(self) -> None:
        """Update the room of all nodes."""
        await self._ask()

    def choose(self, size: int, without: Collection[str], layout: Layout) -> str | None:
        """A store with ``size`` bytes of room for another part of ``layout``, which are reserved until ``count``.

        It is the store with the fewest parts of ``layout``, so that all nodes work on a query, and among these the one
        with the most room.
        """
        counts = Counter(holder.store for part in layout.parts for holder in part.holders)
        fitting = [
            (-counts[status.store], status.room, node, status)
            for node in self._nodes.values()
            if (status := node.status) and status.store not in without and status.room >= size
        ]
        if not fitting:
            return None
        _, _, node, status = max(fitting, key=lambda fit: fit[:2])
        node.status = NodeStatus(status.store, status.limit, status.used + size)
        return status.store

    async def _ask(self) -> Sequence[tuple[_Node, NodeStatus]]:
        """Request the status of all nodes; return those with a new store."""
        nodes = [*self._nodes.values()]
        new = []
        for node, status in zip(nodes, await gathered(node.actor.status.remote() for node in nodes), strict=True):
            is_known = isinstance(status, NodeStatus) and node.status and node.status.store == status.store
            node.status = status if is_known else None
            if isinstance(status, NodeStatus) and not is_known:
                new.append((node, status))
        return new


async def gathered(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """The answer of each call, or in its place the error that the node raised, or that of a node without an answer."""
    answers = await asyncio.gather(*map(_answer, calls), return_exceptions=True)
    return [answer.cause if isinstance(answer, ray.exceptions.RayTaskError) else answer for answer in answers]


async def _answer(call: Awaitable[Any]) -> Any:
    async with asyncio.timeout(ANSWER_S):
        return await call


def _actor(node_id: str, settings: MemorySettings) -> Any:
    """The actor on a node, which runs as long as the node, even if the service is replaced."""
    options = {
        "name": f"{NAME}-{node_id}",
        "namespace": NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": -1,
        "max_concurrency": CALLS,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
    }
    return ray.remote(MemoryNode).options(**options).remote(settings.folder, settings.limit)
