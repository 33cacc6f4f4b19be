"""Memories as the endpoints of both APIs use them: of the client whose key a request has."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from service.budget import Reservation
from service.cost import CostModel, UnknownCost
from service.errors import Gone
from service.memories.memory import Description
from service.memories.stored import Reference, StoredInputs, StoredMemory
from service.model.model import Model

Headers = Mapping[bytes, bytes]


class Keys(Protocol):
    """The API keys of this server."""

    def owner(self, headers: Headers) -> str:
        """Who sends a request with these headers."""

    def is_admin(self, headers: Headers) -> bool:
        """Whether it may use the memories of all."""


class Store(Protocol):
    """Where the memories are; ``MemoryStore`` says what its methods do. A ``memory`` is one that the store answered."""

    queries: int
    misses: int

    @property
    def is_remote(self) -> bool: ...
    @property
    def limit(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    @property
    def counted(self) -> int: ...
    @property
    def counted_bytes(self) -> int: ...
    def create(
        self, description: Description, key: np.ndarray, value: np.ndarray, lengths: tuple[int, ...]
    ) -> StoredMemory: ...
    def get(self, id: str, owner: str | None) -> StoredMemory: ...
    def all(self, owner: str | None) -> Iterator[StoredMemory | tuple[str, Gone]]: ...
    def find(self, contents: Collection[str], owner: str) -> StoredMemory | None: ...
    def append(
        self, memory: Any, key: np.ndarray, value: np.ndarray, expected: Sequence[int] | None, counts: Sequence[int]
    ) -> None: ...
    def delete(self, id: str, owner: str | None) -> None: ...
    def inputs(self, memory: Any, reference: Reference, model: Model) -> StoredInputs: ...
    def sweep(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Memories:
    """The store, and the keys that say to whom a request's memories belong; without keys all belong to everyone."""

    store: Store
    keys: Callable[[], Keys | None]
    finding: CostModel = field(init=False)  # of ``get``

    def __post_init__(self) -> None:
        object.__setattr__(self, "finding", UnknownCost() if self.store.is_remote else CostModel())

    def owner(self, headers: Headers) -> str:
        """To whom a memory belongs that a request with these headers stores."""
        keys = self.keys()
        return keys.owner(headers) if keys else ""

    def seen_by(self, headers: Headers) -> str | None:
        """Whose memories it may use; None: those of all."""
        keys = self.keys()
        return None if keys and keys.is_admin(headers) else self.owner(headers)

    def get(self, id: str, headers: Headers) -> StoredMemory:
        """Raises NotFound, Gone: as ``MemoryStore.get``."""
        return self.store.get(id, self.seen_by(headers))

    def inputs(
        self, memory: StoredMemory, reference: Reference, model: Model, reservation: Reservation
    ) -> StoredInputs:
        """The inputs of a request to ``model`` that ``memory`` has, which is not evicted before the release.

        Raises:
            NotFound: it was deleted.
            Invalid, Conflict: it does not fit to the model or the request.
        """
        reservation.hold(memory.use())
        self.store.queries += 1
        return self.store.inputs(memory, reference, model)
