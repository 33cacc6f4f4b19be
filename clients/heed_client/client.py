"""``Client`` and ``AsyncClient``: two ways to carry out the same calls."""

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar

import httpx

from heed_client.answer import Answer
from heed_client.arrays import Given
from heed_client.block import Block, Line
from heed_client.calls import Call, Calls, Seconds
from heed_client.errors import unreachable

T = TypeVar("T")


def _header(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key is not None else {}


class Client:
    """A Heed server at ``url``; connections are kept, and threads may share them.

    ``timeout`` is the longest time without a byte, None = any. A server that refuses for now (429, 503) and says when
    to come again is asked again, ``retries`` times, where that is at most ``longest_wait`` seconds; nothing else is.
    ``transport`` is httpx's, for certificates, proxies or tests.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout: Seconds | None = 60,
        retries: int = 3,
        longest_wait: Seconds = 30,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(base_url=url, headers=_header(api_key), timeout=timeout, transport=transport)
        self._calls = Calls(self._http, retries, longest_wait)

    def blocks(self) -> list[Line]:
        """The blocks that are served.

        Raises:
            HeedError: as ``heed_client.errors`` says, here and below.
        """
        return self._carry_out(self._calls.blocks())

    def describe(self, block: str) -> Block:
        """A block's formula, inputs with their shapes, parameters with their defaults, and outputs."""
        return self._carry_out(self._calls.describe(block))

    def attend(
        self,
        block: str,
        *,
        outputs: Sequence[str] | None = None,
        average_attn_weights: bool = False,
        weights_top_k: int | None = None,
        binary: bool | None = None,
        **inputs: Given,
    ) -> Answer:
        """Run ``block`` on tensors and parameters, named as ``describe`` names them: query=..., is_causal=True.

        Tensors are numpy arrays, nested lists or torch tensors; None is left out. ``outputs`` are the output and the
        weights where none are named; the output alone is quicker. ``average_attn_weights`` averages over heads,
        ``weights_top_k`` answers only the k largest of each query. Large tensors travel as bytes, small ones in JSON;
        ``binary`` forces one of them, where it can be. The numbers are the same.

        Raises:
            HeedError: as ``heed_client.errors`` says.
            ValueError, TypeError: what was given is no array of numbers; the message begins with its name.
        """
        call = self._calls.attend(block, inputs, outputs, average_attn_weights, weights_top_k, binary)
        return self._carry_out(call)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def _carry_out(self, call: Call[T]) -> T:
        response = None
        while True:
            try:
                step = call.send(response)
            except StopIteration as done:
                result: T = done.value
                return result
            if isinstance(step, httpx.Request):
                try:
                    response = self._http.send(step)
                except httpx.RequestError as error:
                    raise unreachable(error) from error
            else:
                time.sleep(step)
                response = None


class AsyncClient:
    """``Client`` for asyncio; the same arguments, the same answers."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout: Seconds | None = 60,
        retries: int = 3,
        longest_wait: Seconds = 30,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(base_url=url, headers=_header(api_key), timeout=timeout, transport=transport)
        self._calls = Calls(self._http, retries, longest_wait)

    async def blocks(self) -> list[Line]:
        return await self._carry_out(self._calls.blocks())

    async def describe(self, block: str) -> Block:
        return await self._carry_out(self._calls.describe(block))

    async def attend(
        self,
        block: str,
        *,
        outputs: Sequence[str] | None = None,
        average_attn_weights: bool = False,
        weights_top_k: int | None = None,
        binary: bool | None = None,
        **inputs: Given,
    ) -> Answer:
        call = self._calls.attend(block, inputs, outputs, average_attn_weights, weights_top_k, binary)
        return await self._carry_out(call)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _carry_out(self, call: Call[T]) -> T:
        response = None
        while True:
            try:
                step = call.send(response)
            except StopIteration as done:
                result: T = done.value
                return result
            if isinstance(step, httpx.Request):
                try:
                    response = await self._http.send(step)
                except httpx.RequestError as error:
                    raise unreachable(error) from error
            else:
                await asyncio.sleep(step)
                response = None
