"""Samples of what changes while something runs, such as the memory of a process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def sampled(read: Callable[[], T], interval_s: float) -> Iterator[list[T]]:
    """The results of ``read()``, called at the start and every ``interval_s`` seconds in the context.

    A sample that cannot be read (``OSError``) is left out, but not the first.
    """
    samples, ended = [read()], threading.Event()

    def sample() -> None:
        while not ended.wait(interval_s):
            with suppress(OSError):
                samples.append(read())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield samples
    finally:
        ended.set()
        sampler.join()
