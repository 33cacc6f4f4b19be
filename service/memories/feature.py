"""Memories as a feature of the service."""

from collections.abc import Callable, Iterable, Sequence

from starlette.routing import BaseRoute, Route

from service.feature import Core, Feature
from service.http.auth import ApiKeyAuth
from service.memories import openapi
from service.memories.endpoint import MemoriesEndpoint
from service.memories.source import Memories, Store
from service.model.model import Model
from service.native.endpoint import AttentionEndpoint
from service.telemetry.shared_metrics import Gauges, Key


class MemoriesFeature(Feature):
    """``/v1/memories``, and memories as inputs of requests to both APIs, which belong to the client's key."""

    source: Memories

    def __init__(self, store: Store, keys: Callable[[], ApiKeyAuth | None]) -> None:
        self.source = Memories(store, keys)

    def routes(self, core: Core) -> Sequence[Route]:
        blocks = AttentionEndpoint(core.repository, core.settings, core.engine, core.source)
        endpoint, path = MemoriesEndpoint(blocks, self.source), "/v1/memories"
        return [
            Route(path, endpoint.create, methods=["POST"]),
            Route(path, endpoint.list, methods=["GET"]),
            Route(f"{path}/{{memory}}/append", endpoint.append, methods=["POST"]),
            Route(f"{path}/{{memory}}", endpoint.get, methods=["GET"]),
            Route(f"{path}/{{memory}}", endpoint.delete, methods=["DELETE"]),
        ]

    def documented_routes(self, _: Core, blocks: dict[str, Model]) -> Sequence[BaseRoute]:
        return openapi.routes(blocks)

    def counters(self) -> Iterable[tuple[Key, list[int]]]:
        store = self.source.store
        yield ("heed_memory_queries",), [store.queries]
        yield ("heed_memory_misses",), [store.misses]
        yield ("heed_memories_evicted",), [store.evictions]

    def gauges(self) -> Gauges:
        store = self.source.store
        return {("heed_memories",): store.counted, ("heed_memories_bytes",): store.counted_bytes}

    def sweep(self) -> None:
        self.source.store.sweep()

    def close(self) -> None:
        self.source.store.close()
