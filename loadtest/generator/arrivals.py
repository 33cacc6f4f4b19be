"""Poisson arrivals for an event loop.

An event loop's timers have a resolution of a millisecond; a thread's sleep is accurate to some ten microseconds.
"""

import asyncio
import time
from collections.abc import Callable
from random import Random
from threading import Event, Thread

MAX_SLEEP_S = 0.1  # longer waits are split, so that ``stop`` takes effect in between


class Arrivals:
    """Calls ``arrive(due_s)`` on ``loop``, ``rate`` times a second on average, at exponential intervals.

    ``due_s`` is on the clock of ``time.perf_counter``. A busy machine delays calls; none is skipped.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rate: float, random: Random, arrive: Callable[[float], None]
    ) -> None:
        self._stopped = Event()
        self._thread = Thread(target=self._run, args=(loop, rate, random, arrive), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end."""
        self._stopped.set()
        self._thread.join()

    def _run(
        self, loop: asyncio.AbstractEventLoop, rate: float, random: Random, arrive: Callable[[float], None]
    ) -> None:
        due_s = time.perf_counter()
        while not self._stopped.is_set():
            due_s += random.expovariate(rate)
            while (wait_s := due_s - time.perf_counter()) > 0:
                if wait_s < MAX_SLEEP_S:
                    time.sleep(wait_s)
                elif self._stopped.wait(MAX_SLEEP_S / 2):
                    return
            loop.call_soon_threadsafe(arrive, due_s)
