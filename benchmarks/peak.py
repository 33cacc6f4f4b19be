"""The largest value of a number that changes while something runs, such as a process's memory."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def sampled_peak(read: Callable[[], int], interval_s: float) -> Iterator[list[int]]:
    """A list whose only item is the largest of ``read()``, called every ``interval_s`` seconds in the context.

    A sample that cannot be read (``OSError``) is left out, but not the first.
    """
    peak, ended = [read()], threading.Event()

    def sample() -> None:
        while not ended.wait(interval_s):
            with suppress(OSError):
                peak[0] = max(peak[0], read())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield peak
    finally:
        ended.set()
        sampler.join()
