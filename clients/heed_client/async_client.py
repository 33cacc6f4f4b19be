"""``AsyncClient``: it sends the requests of the same calls as ``Client``."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeVar

import httpx

from heed_client.answer import Answer, Tokens
from heed_client.arrays import TensorLike
from heed_client.block import Block, BlockSummary
from heed_client.calls import Call, Calls
from heed_client.client import Dtype, Reduction
from heed_client.connection import http_options, named_inputs, text_fields
from heed_client.errors import TimedOut, Unreachable, transport_errors
from heed_client.memories.calls import Description, MemoryCalls
from heed_client.memories.memory import AsyncMemory, Storing
from heed_client.selection import Indices

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

    async def ready(self) -> bool:
        """Whether the server answers and its models are loaded; False without a server.

        Raises:
            HeedError: the answer is another error; the URL may belong to another server.
        """
        try:
            return await self._execute(self._calls.ready()) is None
        except Unreachable:
            return False

    async def wait_ready(self, timeout: float = 60, interval: float = 0.2) -> None:
        """Wait until the server is ready, for at most ``timeout`` seconds, with ``interval`` seconds between two tries.

        Raises:
            TimedOut: it is not ready then; the message says what it answered last.
            HeedError: as ``ready``.
        """
        end = time.monotonic() + timeout
        while True:
            try:
                reason = await self._execute(self._calls.ready())
            except Unreachable as error:
                reason = str(error)
            if reason is None:
                return
            if time.monotonic() + interval > end:
                raise TimedOut(f"{self._http.base_url} is not ready after {timeout:g} s: {reason}")
            await asyncio.sleep(interval)

    async def blocks(self) -> list[BlockSummary]:
        """List the blocks that the server runs; raises HeedError."""
        return await self._execute(self._calls.blocks())

    async def describe(self, block: str) -> Block:
        """Get a block's formula, inputs, outputs and parameters, as ``Client.describe`` does; raises HeedError."""
        return await self._execute(self._calls.describe(block))

    async def attend(
        self,
        block: str,
        query: TensorLike = None,
        key: TensorLike = None,
        value: TensorLike = None,
        *,
        outputs: str | Sequence[str] | None = None,
        layers: Indices = None,
        heads: Indices = None,
        queries: Indices = None,
        reduce_heads: Reduction | None = None,
        reduce_layers: Reduction | None = None,
        average_attn_weights: bool = False,
        weights_top_k: int | None = None,
        weights_dtype: Dtype | None = None,
        weights_threshold: float | None = None,
        weights_pool: int | None = None,
        weights_pool_by: Reduction | None = None,
        decimals: int | None = None,
        quantized: bool = False,
        additive_mask: bool = False,
        next_tokens: int | None = None,
        binary: bool | None = None,
        **inputs: TensorLike,
    ) -> Answer:
        """Run ``block`` on tensors and parameters, with the arguments of ``Client.attend``.

        Raises:
            HeedError: see ``heed_client.errors``.
            ValueError, TypeError: an input is not an array of numbers; the message begins with its name.
        """
        choices = {
            "layers": layers,
            "heads": heads,
            "queries": queries,
            "reduce_heads": reduce_heads,
            "reduce_layers": reduce_layers,
            "average_attn_weights": average_attn_weights,
            "weights_top_k": weights_top_k,
            "weights_dtype": weights_dtype,
            "weights_threshold": weights_threshold,
            "weights_pool": weights_pool,
            "weights_pool_by": weights_pool_by,
            "decimals": decimals,
            "additive_mask": additive_mask,
            "next_tokens": next_tokens,
        }
        named = named_inputs(query, key, value, inputs)
        call = self._calls.attend(block, named, outputs, choices, quantized, binary)
        return await self._execute(call)

    async def tokenize(
        self,
        model: str,
        text: str | Sequence[str] | None = None,
        *,
        text_pair: str | Sequence[str] | None = None,
        text_target: str | Sequence[str] | None = None,
        truncation: bool | None = None,
        add_special_tokens: bool = True,
    ) -> Tokens:
        """Tokenize texts, with the arguments of ``Client.tokenize``.

        Raises:
            HeedError: see ``heed_client.errors``.
        """
        texts = text_fields(text, text_pair, text_target, truncation, add_special_tokens)
        return await self._execute(self._calls.tokenize(model, texts))

    def memory(
        self,
        key: TensorLike = None,
        value: TensorLike = None,
        *,
        block: str | None = None,
        dtype: Literal["float32", "float16"] | None = None,
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
        """A memory that is stored; raises NotFound if there is none, or HeedError."""
        return self._memory(await self._execute(self._memory_calls.get(id)))

    async def memories(self) -> list[AsyncMemory]:
        """The memories that this API key may use; raises HeedError."""
        return [self._memory(stored) for stored in await self._execute(self._memory_calls.list())]

    def _memory(self, stored: Description, is_temporary: bool = False) -> AsyncMemory:
        return AsyncMemory(self.attend, self._execute, self._memory_calls, stored, is_temporary)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _execute(self, call: Call[T]) -> T:
        response = None
        while True:
            try:
                step = call.send(response)
            except StopIteration as end:
                result: T = end.value
                return result
            response = None
            if isinstance(step, httpx.Request):
                with transport_errors():
                    response = await self._http.send(step)
            else:
                await asyncio.sleep(step)
