"""JSON read and written on the event loop, in steps of about a millisecond, between which other requests are served.

This work needs the interpreter's lock all the time, so a thread would not make it faster.
"""

import asyncio
import time
from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

from service.cost import CostModel

T = TypeVar("T")
Steps = Generator[None, None, T]  # each yield ends a step
MAX_TURN_NS = 500_000  # shorter steps are joined to one turn of the event loop


def drain(steps: Steps[T]) -> T:
    """The result of all steps, done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def run_cooperatively(cost: CostModel, size: int, steps: Steps[T]) -> T:
    """The result of all steps; between them the event loop serves others. ``cost`` learns how long they take."""
    spent, start = 0, time.thread_time_ns()
    with closing(steps):  # in this task, as its context may have changed
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
                start = time.thread_time_ns()
