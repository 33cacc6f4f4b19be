"""Work that holds the interpreter's lock as long as it lasts: JSON read and written.

No thread makes it quicker, and the way to one costs. It is done on the event loop, in steps of about a millisecond,
between which the loop turns to others.
"""

import asyncio
import time
from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

from service.cost import Cost

T = TypeVar("T")
Steps = Generator[None, None, T]  # each yield ends a step
TURN = 500_000  # nanoseconds; shorter steps are joined


def at_once(steps: Steps[T]) -> T:
    """The result of all steps, one after another."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def in_turns(cost: Cost, size: int, steps: Steps[T]) -> T:
    """The result of all steps, with room for others between them; ``cost`` learns what they take."""
    spent, start = 0, time.thread_time_ns()
    with closing(steps):  # in this task, whose context they may have changed
        while True:
            try:
                next(steps)
            except StopIteration as end:
                cost.learn(size, spent + time.thread_time_ns() - start)
                result: T = end.value
                return result
            step = time.thread_time_ns() - start
            if step > TURN:
                spent += step
                await asyncio.sleep(0)
                start = time.thread_time_ns()
