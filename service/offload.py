"""Where work runs: small work on the event loop, where a hop to a thread would cost more; large work in a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Nanoseconds, of one core of 2024; they only have to tell microseconds from milliseconds.
PER_JSON_BYTE = 2.0
PER_NUMBER_WRITTEN = 30.0
PER_MULTIPLICATION = 0.05
PER_BYTE_COPIED = 0.1
PER_BYTE_INFLATED = 30.0  # of what is sent; it may grow a thousandfold
PER_BYTE_DEFLATED = 20.0


class Offload:
    """Runs a function here or in one of ``threads`` threads, by what it is estimated to cost."""

    def __init__(self, threads: int, inline_microseconds: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="heed")
        self._inline_nanoseconds = 1000 * inline_microseconds

    async def __call__(self, nanoseconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if nanoseconds <= self._inline_nanoseconds:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def close(self) -> None:
        self._pool.shutdown()
