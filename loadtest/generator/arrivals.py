"""Poisson arrivals for an event loop.

An event loop's timers have a resolution of a millisecond; a thread's sleep is accurate to some ten microseconds.
"""

import asyncio
import time
from collections.abc import Callable
from random import Random
from threading import Event, Thread

MAX_SLEEP_S = 0.1  # longer waits are split, so that ``stop`` takes effect in between


class Arrivals(Thread):
    """Calls ``arrive(due_s)`` on ``loop``, ``rate`` times a second on average, at exponential intervals.

    ``due_s`` is on the clock of ``time.perf_counter``. A busy machine delays calls; none is skipped.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rate: float, random: Random, arrive: Callable[[float], None]
    ) -> None:
        super().__init__(daemon=True)
        self._loop, self._rate, self._random, self._arrive = loop, rate, random, arrive
        self._stopped = Event()

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        due_s = time.perf_counter()
        while not self._stopped.is_set():
            due_s += self._random.expovariate(self._rate)
            while (wait_s := due_s - time.perf_counter()) > 0:
                if wait_s < MAX_SLEEP_S:
                    time.sleep(wait_s)
                elif self._stopped.wait(MAX_SLEEP_S / 2):
                    return
            self._loop.call_soon_threadsafe(self._arrive, due_s)
