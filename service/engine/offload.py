"""Work other than runs, such as decoding: on the event loop where it is short, else in threads or in steps."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import ParamSpec, TypeVar

from service.base.cost import CostModel
from service.base.steps import Steps

P = ParamSpec("P")
T = TypeVar("T")
Check = Callable[[], None]
LONG_WORK_NS = 50e6  # work expected to take longer has threads of its own: short work does not wait for it
MAX_TURN_NS = 500_000  # shorter steps are joined to one turn of the event loop
MAX_COOPERATIVE = 4  # requests whose JSON is read or written on the event loop at one time


def no_check() -> None:
    """The check of work that nothing ends."""


class Offload:
    """Calls functions in ``threads`` threads, and those that are known to be short on the event loop.

    Those that are expected to be long, or of which nothing is known, are called in as many other threads.

    ``inline_ns`` is the time up to which work may keep the event loop from other requests.
    """

    def __init__(self, threads: int) -> None:
        self.inline_ns = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="heed-offload")
        self._long = ThreadPoolExecutor(threads, thread_name_prefix="heed-offload-long")
        self._cooperative = asyncio.Semaphore(MAX_COOPERATIVE)

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``function``, called in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **kwargs))

    async def inline_or_offload(
        self, cost: CostModel, size: int, function: Callable[[], T], check: Check = no_check
    ) -> T:
        """The result of ``function``, called here if ``cost`` expects it to be short, else in a thread.

        It is not called where ``check`` raises an error, once a thread is free.
        """

        def timed() -> T:
            check()
            start = time.thread_time_ns()
            try:
                result = function()
            except Exception:
                cost.learn_failure(size, time.thread_time_ns() - start)
                raise
            cost.learn(size, time.thread_time_ns() - start)
            return result

        expected_ns = cost.expected(size)
        if expected_ns <= self.inline_ns:
            return timed()
        pool = self._pool if expected_ns <= LONG_WORK_NS else self._long
        return await asyncio.get_running_loop().run_in_executor(pool, timed)

    async def run_cooperatively(self, cost: CostModel, size: int, steps: Steps[T], check: Check = no_check) -> T:
        """The result of all ``steps``, done on the event loop; only a few requests at a time are in their steps.

        Each turn of the event loop does one step of each of them, and every other request waits for that. Before each
        turn ``check`` may raise an error, which ends them.
        """
        async with self._cooperative:
            await asyncio.sleep(0)  # else any number of requests, each of one step, would be done in one turn
            return await run_cooperatively(cost, size, steps, check)

    def close(self) -> None:
        """Wait for the threads to finish."""
        self._pool.shutdown()
        self._long.shutdown()


async def run_cooperatively(cost: CostModel, size: int, steps: Steps[T], check: Check = no_check) -> T:
    """The result of all steps; between them the event loop serves others. ``cost`` learns how long they take.

    Before each turn ``check`` may raise an error, which ends them.
    """
    spent, start = 0, time.thread_time_ns()
    with closing(steps):  # in this task, as its context may have changed
        check()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                cost.learn(size, spent + time.thread_time_ns() - start)
                result: T = end.value
                return result
            except Exception:
                cost.learn_failure(size, spent + time.thread_time_ns() - start)
                raise
            step = time.thread_time_ns() - start
            if step > MAX_TURN_NS:
                spent += step
                await asyncio.sleep(0)
                check()
                start = time.thread_time_ns()
