"""Samples of a changing value, such as the memory of a process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def sampled(read: Callable[[], T], interval_s: float) -> Iterator[list[T]]:
    """The results of ``read()``, called at the start and every ``interval_s`` seconds in the context.

    A later sample that cannot be read (``OSError``) is left out; an error of the first is raised.
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
