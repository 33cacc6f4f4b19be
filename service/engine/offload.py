"""Work other than runs, such as decoding: on the event loop where it is short, else in threads or in steps."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from service.codec.steps import Steps, run_cooperatively
from service.cost import CostModel

P = ParamSpec("P")
T = TypeVar("T")
MAX_COOPERATIVE = 4  # requests whose JSON is read or written on the event loop at one time


class Offload:
    """Calls functions in ``threads`` threads, and those that are known to be short on the event loop.

    ``inline_ns`` is the time up to which work may keep the event loop from other requests.
    """

    def __init__(self, threads: int) -> None:
        self.inline_ns = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="heed-aside")
        self._cooperative = asyncio.Semaphore(MAX_COOPERATIVE)

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``function``, called in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **kwargs))

    async def inline_or_offload(
        self, cost: CostModel, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The result of ``function``, called here if ``cost`` expects it to be short, else in a thread."""

        def timed() -> T:
            start = time.thread_time_ns()
            result = function(*args, **kwargs)
            cost.learn(size, time.thread_time_ns() - start)
            return result

        return timed() if cost.expected(size) <= self.inline_ns else await self(timed)

    async def run_cooperatively(self, cost: CostModel, size: int, steps: Steps[T]) -> T:
        """The result of all ``steps``, done on the event loop; only a few requests at a time are in their steps.

        Each turn of the event loop does one step of each of them, and every other request waits for that.
        """
        async with self._cooperative:
            await asyncio.sleep(0)  # else any number of requests, each of one step, would be done in one turn
            return await run_cooperatively(cost, size, steps)

    def close(self) -> None:
        """Wait for the threads to finish."""
        self._pool.shutdown()
