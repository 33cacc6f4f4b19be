"""Memories in a store of this process, without a server."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from service.memories.memory import Description, Memory
from service.memories.store import MemoryStore

MIB = 1 << 20


def rows(number: float, count: int = 2) -> np.ndarray:
    return np.full((1, 1, count, 2), number, np.float32)


def description(**fields: Any) -> Description:
    plain = {"block": None, "version": None, "dtype": "float32", "lead": (1, 1), "batch_axis": 0, "d_k": 2, "d_v": 2}
    return Description(**{**plain, "owner": "", "content": "", "created": 0, "expires": None, **fields})


def stored(memories: MemoryStore, **fields: Any) -> Memory:
    """A memory of two keys and values, all 1."""
    return memories.create(description(**fields), rows(1), rows(1), (2,))


def contents(memory: Memory) -> list[list[float]]:
    """The first number of each key, and of each value."""
    return [array[0, 0, :, 0].tolist() for array in memory.arrays()[1:]]


def append(
    memory: Memory, number: float, grow: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext()
) -> None:
    with memory.appending(rows(number), rows(number), grow):
        pass
