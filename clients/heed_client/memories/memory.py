"""A memory of a server, as ``Client`` and ``AsyncClient`` return it."""

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from heed_client.answer import Answer
from heed_client.arrays import TensorLike
from heed_client.calls import Call
from heed_client.connection import awaited
from heed_client.errors import HeedError, NotFound
from heed_client.memories.calls import Description, MemoryCalls

DEFAULT_BLOCK = "scaled_dot_product"


class _Memory:
    """The base of both kinds. ``attend`` and ``execute`` are the client's; a temporary memory is deleted on exit."""

    def __init__(
        self,
        attend: Callable[..., Any],
        execute: Callable[[Call[Any]], Any],
        calls: MemoryCalls,
        description: Description,
        is_temporary: bool,
    ) -> None:
        self._attend = attend
        self._execute = execute
        self._calls = calls
        self._is_temporary = is_temporary
        self.description = description

    @property
    def id(self) -> str:
        return self.description.id

    @property
    def block(self) -> str | None:
        """The block whose projections are stored; None: keys and values as they were sent."""
        return self.description.block

    @property
    def lengths(self) -> tuple[int, ...]:
        """Keys of each row of the batch, as of this object's last call that changes or asks for them."""
        return self.description.lengths

    @property
    def bytes(self) -> int:
        """Size of the server's files, which have room for further keys; as of the last ``append`` or ``refresh``."""
        return self.description.bytes

    def __repr__(self) -> str:
        of = f" of {self.block}" if self.block else ""
        return f"<Memory {self.id}{of}: key {list(self.description.key_shape)}, {self.description.dtype}>"

    def _query(self, block: str | None, **options: Any) -> Any:
        return self._attend(block or self.block or DEFAULT_BLOCK, memory=self.id, **options)

    def _update(self, call: Call[Description]) -> Call[None]:
        self.description = yield from call

    def _add(self, count: int) -> None:
        lengths = tuple(length + count for length in self.lengths)
        self.description = replace(self.description, lengths=lengths)

    def _end(self, error: BaseException | None) -> Call[None]:
        """Delete a temporary memory. If that fails after an ``error`` has ended its use, the failure is ignored."""
        if self._is_temporary:
            try:
                yield from self._calls.delete(self.id)
            except HeedError as failure:
                if error is None and not isinstance(failure, NotFound):
                    raise


class Memory(_Memory):
    """Keys and values on the server.

    ``with`` deletes it at its end, except a memory that was opened, reused, or stored with ``keep``.
    """

    def query(self, /, query: TensorLike = None, *, block: str | None = None, **options: Any) -> Answer:
        """Run ``block`` on ``query`` [batch, heads, m, d_k], or its last 2 or 3 dimensions, and the stored keys.

        ``options`` are the further inputs and the options of ``Client.attend``. Without ``block`` it is the block for
        which the memory was stored, or scaled_dot_product.

        Raises:
            NotFound: the memory was deleted, has expired, or was evicted.
            HeedError, ValueError, TypeError: see ``Client.attend``.
        """
        answer: Answer = self._query(block, query=query, **options)
        return answer

    def step(
        self,
        query: TensorLike = None,
        key: TensorLike = None,
        value: TensorLike = None,
        *,
        block: str | None = None,
        at: int | None = None,
        **options: Any,
    ) -> Answer:
        """A decoding step: append ``key`` and ``value`` and attend to all keys, in one request.

        A block with self-attention takes its own input instead: ``step(x=x)``. With ``at``, every row must have that
        many keys before the step, so that a step that is sent again cannot be appended twice.

        Raises:
            Conflict: the memory does not have ``at`` keys.
            NotFound, HeedError, ValueError, TypeError: see ``query``.
        """
        tensors = {"query": query, "key": key, "value": value, **options}
        answer: Answer = self._query(block, **tensors, memory_append=True, memory_at=at)
        self._add(_new_keys(tensors))
        return answer

    def append(
        self,
        /,
        key: TensorLike = None,
        value: TensorLike = None,
        *,
        at: int | None = None,
        nonpad_kv_seqlen: TensorLike = None,
        **inputs: TensorLike,
    ) -> None:
        """Append ``key`` [batch, kv_heads, n, d_k] and ``value`` [batch, kv_heads, n, d_v], or their last dimensions.

        For a memory of a block, the block's inputs are given by name. Row i of the batch gets its first
        ``nonpad_kv_seqlen[i]`` keys. An error means that nothing is appended, except when more than 64 MiB
        are sent in parts.

        Raises:
            Conflict: the memory does not have ``at`` keys.
            HeedError: see ``heed_client.errors``.
            ValueError, TypeError: a tensor is not an array of numbers; the message begins with its name.
        """
        tensors = {"key": key, "value": value, **inputs}
        done: None = self._execute(self._update(self._calls.append(self.description, tensors, at, nonpad_kv_seqlen)))
        return done

    def refresh(self) -> None:
        """Update ``lengths`` and ``bytes``, since other clients may have appended keys; raises HeedError."""
        done: None = self._execute(self._update(self._calls.get(self.id)))
        return done

    def delete(self) -> None:
        """Delete it on the server; raises HeedError."""
        done: None = self._execute(self._calls.delete(self.id))
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._execute(self._end(error))


class AsyncMemory(_Memory):
    """``Memory`` for asyncio, with the same arguments and results."""

    query = awaited(Memory.query)
    append = awaited(Memory.append)
    refresh = awaited(Memory.refresh)
    delete = awaited(Memory.delete)

    async def step(
        self,
        query: TensorLike = None,
        key: TensorLike = None,
        value: TensorLike = None,
        *,
        block: str | None = None,
        at: int | None = None,
        **options: Any,
    ) -> Answer:
        """A decoding step, as ``Memory.step``; raises the same errors."""
        tensors = {"query": query, "key": key, "value": value, **options}
        answer: Answer = await self._query(block, **tensors, memory_append=True, memory_at=at)
        self._add(_new_keys(tensors))
        return answer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        await self._execute(self._end(error))


class Storing(Awaitable[AsyncMemory]):
    """A memory that is about to be stored or opened: ``await`` it, or use it with ``async with``."""

    def __init__(self, start: Callable[[], Awaitable[AsyncMemory]]) -> None:
        self._start = start
        self._memory: AsyncMemory | None = None

    def __await__(self) -> Generator[Any, None, AsyncMemory]:
        return self._start().__await__()

    async def __aenter__(self) -> AsyncMemory:
        self._memory = await self
        return self._memory

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._memory is not None
        await self._memory.__aexit__(kind, error, trace)


def _new_keys(tensors: Mapping[str, TensorLike]) -> int:
    """The number of keys that a step with these inputs appends: token ids are [batch, n], others [..., n, width]."""
    for name, axis in (("key", -2), ("x", -2), ("input_ids", -1)):
        if tensors.get(name) is not None:
            return int(np.shape(tensors[name])[axis])
    return 0
