"""A process that makes load: ``python -m loadtest.worker FD``. It takes turns from a pipe and answers ticks."""

import asyncio
import os
import sys
from multiprocessing.connection import Connection as Pipe
from typing import Any

import uvloop

from loadtest.load import Load

READY, MEASURE, FINISH = "ready", "measure", "finish"
SWITCH = 0.0005  # seconds until the thread that waits for arrivals gets its turn


class Worker:
    """Obeys: a Turn begins one, MEASURE ends its warm-up, FINISH ends it. The pipe's end ends the process."""

    def __init__(self, pipe: "Pipe[Any, Any]") -> None:
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._load: Load | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._finishing: asyncio.Task[None] | None = None
        self.over = asyncio.Event()
        self._loop.add_reader(pipe.fileno(), self._obey)
        os.set_blocking(pipe.fileno(), True)  # the loop made it otherwise; messages come and go whole
        pipe.send(READY)

    def _obey(self) -> None:
        try:
            order = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._loop.remove_reader(self._pipe.fileno())
            self.over.set()
            return
        if order == MEASURE and self._load:
            self._pipe.send(self._load.measure())
        elif order == FINISH and self._load and self._ticking:
            self._ticking.cancel()
            self._finishing = self._loop.create_task(self._finish(self._load))
        else:
            self._load = Load(order)
            self._load.start()
            self._ticking = self._loop.call_later(order.tick, self._tick, self._load)

    def _tick(self, load: Load) -> None:
        self._pipe.send(load.tick())
        self._ticking = self._loop.call_later(load.turn.tick, self._tick, load)

    async def _finish(self, load: Load) -> None:
        for tick in await load.finish():
            self._pipe.send(tick)


async def work(pipe: "Pipe[Any, Any]") -> None:
    await Worker(pipe).over.wait()


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH)
    try:
        uvloop.run(work(Pipe(int(sys.argv[1]))))
    except (BrokenPipeError, KeyboardInterrupt):  # the process that reads has gone
        sys.exit(1)
