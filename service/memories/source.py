"""Memories as a source of inputs: a request names one that belongs to its API key."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from pydantic import Field

from service.base.cost import UNKNOWN, CostModel
from service.base.errors import Gone
from service.codec.json_reader import JsonReader
from service.http.auth import ApiKeyAuth
from service.http.body import Headers
from service.http.direct import RequestContext
from service.inference.source import FieldDefinitions, InputSource, SourceInputs
from service.inference.stages import Stage, Stages
from service.memories.memory import Description
from service.memories.stored import (
    APPEND,
    AT,
    FIELD,
    Reference,
    StoredInputs,
    StoredMemory,
    check_usable,
    read_reference,
)
from service.model.model import Model

FIELDS: FieldDefinitions = {
    FIELD: (str | None, Field(None, description="id of a memory to attend to")),
    APPEND: (
        bool | None,
        Field(False, description="append this request's keys and values to the memory first"),
    ),
    AT: (int | None, Field(None, ge=0, description="append only if the memory has this many keys")),
}


class Store(Protocol):
    """The store of memories, with the methods of ``MemoryStore``. A ``memory`` argument is one of this store."""

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


class Memories(InputSource[Reference]):
    """The store, and the keys that say to whom a request's memories belong; without keys all belong to everyone."""

    fields = FIELDS

    def __init__(self, store: Store, keys: Callable[[], ApiKeyAuth | None]) -> None:
        self.store = store
        self._keys = keys
        self._finding = UNKNOWN if store.is_remote else CostModel()  # of ``get``

    def owner(self, headers: Headers) -> str:
        """The owner of memories stored by requests with these headers."""
        keys = self._keys()
        return keys.owner(headers) if keys else ""

    def seen_by(self, headers: Headers) -> str | None:
        """The owner whose memories a request with these headers may use; None = all owners."""
        keys = self._keys()
        return None if keys and keys.is_admin(headers) else self.owner(headers)

    def get(self, id: str, headers: Headers) -> StoredMemory:
        """Raises NotFound, Gone: as ``MemoryStore.get``."""
        return self.store.get(id, self.seen_by(headers))

    def read(self, given: Mapping[str, Any], model: Model, _reader: JsonReader | None) -> Reference | None:
        reference = read_reference(given)
        if reference is not None:
            check_usable(model, FIELD)
        return reference

    def open(self, reference: Reference, model: Model, context: RequestContext) -> Stages[SourceInputs]:
        memory = yield Stage(self._finding, 1, partial(self.get, reference.id, context.headers))
        context.reservation.hold(memory.use())  # it is not evicted before the release
        self.store.queries += 1
        return self.store.inputs(memory, reference, model)
