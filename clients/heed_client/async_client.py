"""``AsyncClient``: it has the methods of ``Client``, and sends the requests of their calls."""

import asyncio
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeVar

import httpx

from heed_client.arrays import TensorLike
from heed_client.calls import Call, Calls
from heed_client.client import Client, DtypeLike
from heed_client.connection import awaited, http_options
from heed_client.errors import Unreachable, transport_errors
from heed_client.generation.generation import AsyncGeneration, GenerateRequest, asynchronous
from heed_client.memories.calls import Description, MemoryCalls
from heed_client.memories.memory import AsyncMemory, Storing

T = TypeVar("T")


class AsyncClient:
    """``Client`` for asyncio, with the same arguments and results."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        cacert: str | Path | None = None,
        verify: bool = True,
        timeout: float | None = 60,
        retries: int = 3,
        max_wait_s: float = 30,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(**http_options(url, api_key, cacert, verify, timeout, transport))
        self._calls = Calls(self._http, retries, max_wait_s)
        self._memory_calls = MemoryCalls(self._calls)

    ready = awaited(Client.ready)
    wait_ready = awaited(Client.wait_ready)
    blocks = awaited(Client.blocks)
    describe = awaited(Client.describe)
    attend = awaited(Client.attend)
    tokenize = awaited(Client.tokenize)
    sweep = awaited(Client.sweep)
    lens = awaited(Client.lens)
    generate = asynchronous(Client.generate)

    def memory(
        self,
        key: TensorLike = None,
        value: TensorLike = None,
        *,
        block: str | None = None,
        dtype: Literal["float32", "float16"] | DtypeLike | None = None,
        ttl_seconds: float | None = None,
        nonpad_kv_seqlen: TensorLike = None,
        reuse: bool = False,
        keep: bool = False,
        **inputs: TensorLike,
    ) -> Storing:
        """Store keys and values, as ``Client.memory`` does: ``await`` it, or use it with ``async with``.

        Raises:
            HeedError, ValueError, TypeError: as ``Client.memory``, when it is awaited.
        """
        options = {"block": block, "dtype": dtype, "ttl_seconds": ttl_seconds}
        call = self._memory_calls.store({"key": key, "value": value, **inputs}, options, nonpad_kv_seqlen, reuse)

        async def start() -> AsyncMemory:
            stored, is_new = await self._execute(call)
            return self._memory(stored, is_new and not keep)

        return Storing(start)

    async def open_memory(self, id: str) -> AsyncMemory:
        """Return a stored memory; raises NotFound if it does not exist, or HeedError."""
        return self._memory(await self._execute(self._memory_calls.get(id)))

    async def memories(self) -> list[AsyncMemory]:
        """The memories that this API key may use; raises HeedError."""
        return [self._memory(stored) for stored in await self._execute(self._memory_calls.list())]

    def _memory(self, stored: Description, is_temporary: bool = False) -> AsyncMemory:
        return AsyncMemory(self.attend, self._execute, self._memory_calls, stored, is_temporary)

    def _generation(self, request: GenerateRequest) -> AsyncGeneration:
        return AsyncGeneration(self._execute, self._calls, request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _execute(self, call: Call[T], stream: bool = False) -> T:
        resume = partial(call.send, None)
        while True:
            try:
                step = resume()
            except StopIteration as end:
                result: T = end.value
                return result
            if not isinstance(step, httpx.Request):
                await asyncio.sleep(step)
                resume = partial(call.send, None)
                continue
            try:
                with transport_errors():
                    response = await self._http.send(step, stream=stream)
                    if stream and not response.is_success:
                        await response.aread()
                    resume = partial(call.send, response)
            except Unreachable as error:
                resume = partial(call.throw, error)
