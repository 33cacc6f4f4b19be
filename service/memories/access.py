"""Memories as the endpoints of both APIs use them: of the client whose key a request has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from service.budget import Reservation
from service.memories.memory import Memory
from service.memories.store import MemoryStore
from service.memories.stored import Reference, StoredInputs
from service.model.model import Model

Headers = Mapping[bytes, bytes]


class Keys(Protocol):
    """The API keys of this server."""

    def owner(self, headers: Headers) -> str:
        """Who sends a request with these headers."""

    def is_admin(self, headers: Headers) -> bool:
        """Whether it may use the memories of all."""


@dataclass(frozen=True)
class Memories:
    """The store, and the keys that say to whom a request's memories belong; without keys all belong to everyone."""

    store: MemoryStore
    keys: Callable[[], Keys | None]

    def owner(self, headers: Headers) -> str:
        """To whom a memory belongs that a request with these headers stores."""
        keys = self.keys()
        return keys.owner(headers) if keys else ""

    def seen_by(self, headers: Headers) -> str | None:
        """Whose memories it may use; None: those of all."""
        keys = self.keys()
        return None if keys and keys.is_admin(headers) else self.owner(headers)

    def get(self, id: str, headers: Headers) -> Memory:
        """Raises NotFound, Gone: as ``MemoryStore.get``."""
        return self.store.get(id, self.seen_by(headers))

    def stored(self, reference: Reference, model: Model, headers: Headers, reservation: Reservation) -> StoredInputs:
        """The inputs of a request that are in the memory it names.

        It is not evicted before ``reservation`` is released.

        Raises:
            NotFound, Gone: there is no such memory, or it is damaged.
            Invalid, Conflict: it does not fit to the model or the request.
        """
        memory = self.get(reference.id, headers)
        reservation.hold(memory.use())
        self.store.queries += 1
        return StoredInputs(memory, reference, model, self.store)
