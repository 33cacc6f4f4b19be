"""A bounded cache: what was computed for earlier requests need not be computed again for requests like them."""

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """A dictionary of at most ``max_entries``, for several threads; the oldest entry is dropped first."""

    def __init__(self, max_entries: int = 512) -> None:
        self._max_entries = max_entries
        self._entries: dict[Hashable, V] = {}
        self._lock = threading.Lock()
        self.get: Callable[[Hashable], V | None] = self._entries.get  # the entry of a key, without another call

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: Hashable, entry: V) -> None:
        """Keep ``entry`` for ``key``."""
        with self._lock:
            if len(self._entries) >= self._max_entries and key not in self._entries:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = entry

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._entries.clear()
