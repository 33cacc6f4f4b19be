"""Threads for work that may take minutes, such as loading a model. A process does not wait for them when it ends."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
NAME = "heed-background"


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a thread of its own and return its result.

    ``asyncio.to_thread`` is for short work: the process waits for its threads when it ends.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Callable[[], None]) -> None:
        if not future.done():  # it is done if the caller was cancelled
            result()

    def work() -> None:
        try:
            result = partial(future.set_result, function(*args, **kwargs))
        except BaseException as error:
            result = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result)

    threading.Thread(target=contextvars.copy_context().run, args=(work,), name=NAME, daemon=True).start()
    return await future


def is_running() -> bool:
    """Whether such a thread is still running."""
    return any(thread.name == NAME for thread in threading.enumerate())
