"""Poisson's instants, told to an event loop.

The timers of event loops count whole milliseconds; a thread's sleep is good to some ten microseconds.
"""

import asyncio
import time
from collections.abc import Callable
from random import Random
from threading import Event, Thread

LONG = 0.1  # seconds that are not slept through at once, so that an end is noticed


class Arrivals:
    """Calls ``arrive(due)`` on ``loop`` at ``rate`` a second, as independent as strangers; late, never left out."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rate: float, random: Random, arrive: Callable[[float], None]
    ) -> None:
        self._stopped = Event()
        self._thread = Thread(target=self._run, args=(loop, rate, random, arrive), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended."""
        self._stopped.set()
        self._thread.join()

    def _run(
        self, loop: asyncio.AbstractEventLoop, rate: float, random: Random, arrive: Callable[[float], None]
    ) -> None:
        due = time.perf_counter()
        while not self._stopped.is_set():
            due += random.expovariate(rate)
            while (early := due - time.perf_counter()) > 0:
                if early < LONG:
                    time.sleep(early)
                elif self._stopped.wait(LONG / 2):
                    return
            loop.call_soon_threadsafe(arrive, due)
