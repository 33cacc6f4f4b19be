"""A process that generates load: it receives turns and sends samples through a pipe."""

import asyncio
import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any

import uvloop

from loadtest.generator.load import Load

READY, MEASURE, FINISH = "ready", "measure", "finish"
SWITCH_INTERVAL_S = 0.0005  # longest time for which the event loop keeps the GIL from the thread of arrivals


class Worker:
    """Executes messages: a Turn begins one, MEASURE ends its warm-up, FINISH ends it; EOF ends the process."""

    def __init__(self, pipe: "Pipe[Any, Any]") -> None:
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._load: Load | None = None
        self._sampling: asyncio.TimerHandle | None = None
        self._finishing: asyncio.Task[None] | None = None
        self.done = asyncio.Event()
        self._loop.add_reader(pipe.fileno(), self._receive)
        os.set_blocking(pipe.fileno(), True)  # uvloop makes it non-blocking, but a Pipe needs blocking reads and writes
        pipe.send(READY)

    def _receive(self) -> None:
        try:
            message = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._loop.remove_reader(self._pipe.fileno())
            self.done.set()
            return
        if message == MEASURE and self._load:
            self._pipe.send(self._load.measure())
        elif message == FINISH and self._load and self._sampling:
            self._sampling.cancel()
            self._finishing = self._loop.create_task(self._finish(self._load))
        else:
            self._load = Load(message)
            self._load.start()
            self._sampling = self._loop.call_later(message.sample_s, self._sample, self._load)

    def _sample(self, load: Load) -> None:
        self._pipe.send(load.sample())
        self._sampling = self._loop.call_later(load.turn.sample_s, self._sample, load)

    async def _finish(self, load: Load) -> None:
        for sample in await load.finish():
            self._pipe.send(sample)


async def work(pipe: "Pipe[Any, Any]") -> None:
    await Worker(pipe).done.wait()


def run(pipe: "Pipe[Any, Any]") -> None:
    """Work in this process, which the keyboard's signals do not reach."""
    os.setsid()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with suppress(BrokenPipeError):  # the parent process has ended
        uvloop.run(work(pipe))
