"""A memory of the cluster in a replica of the service."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np

from deploy.ray.memories.layout import Snapshot
from service.memories.memory import Description
from service.memories.state import State

CALL_S = 90.0  # time limit for an answer of the catalogue or a node


class ClusterMemory:
    """A memory that is split over nodes. This object has no keys and values, only their shapes."""

    is_verified = True

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    @property
    def id(self) -> str:
        return self.snapshot.layout.id

    @property
    def description(self) -> Description:
        return self.snapshot.layout.description

    def state(self) -> State:
        lengths = self.snapshot.lengths
        return State(self.snapshot.appends, 0, max(lengths), (0, 0), lengths)

    def arrays(self) -> tuple[State, np.ndarray, np.ndarray]:
        """The state, and arrays with the shapes of keys and values that take no memory."""
        state, zero = self.state(), np.zeros((), self.description.dtype)
        key, value = (np.broadcast_to(zero, shape) for shape in self.description.shapes(state.length))
        return state, key, value

    def verify(self) -> None:
        """Do nothing: each node checks its parts."""

    def use(self) -> AbstractContextManager[None]:
        """An empty context: a memory that was used in the last seconds is not evicted."""
        return nullcontext()
