"""The processes that make the load together."""

import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import Any, Self

from loadtest.load import Tick, Turn
from loadtest.worker import FINISH, MEASURE

ROOT = Path(__file__).parents[1]


class Crew:
    """``processes`` workers while the context lasts."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pipes: list[Any] = []
        self._running: list[subprocess.Popen[bytes]] = []
        self._busy: list[Any] = []  # in this turn

    def __enter__(self) -> Self:
        for _ in range(self._processes):
            ours, theirs = Pipe()
            command = [sys.executable, "-m", "loadtest.worker", str(theirs.fileno())]
            self._running.append(
                subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], start_new_session=True)
            )
            theirs.close()
            self._pipes.append(ours)
        for pipe in self._pipes:
            self._receive(pipe)  # it is ready
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._running:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def begin(self, turn: Turn) -> int:
        """Share ``turn`` among the processes; answers how many work, each on a connection at least."""
        several = min(len(self._pipes), turn.connections)
        self._busy = self._pipes[:several]
        for i, pipe in enumerate(self._busy):
            pipe.send(
                replace(
                    turn,
                    connections=turn.connections // several + (i < turn.connections % several),
                    rate=turn.rate / several if turn.rate else None,
                    seed=turn.seed + i,
                )
            )
        return several

    def measure(self) -> None:
        """The warm-up is over."""
        for pipe in self._busy:
            pipe.send(MEASURE)

    def finish(self) -> Iterator[Tick]:
        """End the turn; the ticks that are still to come."""
        for pipe in self._busy:
            pipe.send(FINISH)
        missing = set(self._busy)
        while missing:
            for pipe in self._ready(missing):
                tick: Tick = self._receive(pipe)
                yield tick
                if tick.last:
                    missing.discard(pipe)

    def ticks(self, seconds: float) -> Iterator[Tick]:
        """Those of the next ``seconds``."""
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            for pipe in self._ready(self._busy, left):
                yield self._receive(pipe)

    def _ready(self, pipes: Collection[Any], seconds: float | None = None) -> list[Any]:
        return wait(list(pipes), seconds)

    def _receive(self, pipe: Any) -> Any:
        try:
            return pipe.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError("a process that makes the load has ended") from error
