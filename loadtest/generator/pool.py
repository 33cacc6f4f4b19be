"""The pool of worker processes that generate the load together."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import Any, Self

from loadtest.generator.load import Sample, Turn
from loadtest.generator.worker import FINISH, MEASURE

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-P", "-m", "loadtest.generator.worker"]  # -P: do not import from the working directory


class WorkerPool:
    """A context manager that runs ``processes`` workers."""

    def __init__(self, processes: int) -> None:
        self._size = processes
        self._pipes: list[Any] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._active: list[Any] = []  # pipes of the workers that take part in the turn

    def __enter__(self) -> Self:
        # Workers inherit the working directory, so that relative paths in the environment (SSL_CERT_FILE) stay valid.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        for _ in range(self._size):
            parent_end, worker_end = Pipe()
            process = subprocess.Popen(
                [*COMMAND, str(worker_end.fileno())],
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=[worker_end.fileno()],
                start_new_session=True,
            )
            self._processes.append(process)
            worker_end.close()
            self._pipes.append(parent_end)
        for pipe in self._pipes:
            self._receive(pipe)  # READY
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def begin(self, turn: Turn) -> int:
        """Divide ``turn`` among the workers; return how many take part, each with at least one connection."""
        count = min(len(self._pipes), turn.connections)
        self._active = self._pipes[:count]
        for i, pipe in enumerate(self._active):
            pipe.send(
                replace(
                    turn,
                    connections=turn.connections // count + (i < turn.connections % count),
                    rate=turn.rate / count if turn.rate else None,
                    seed=turn.seed + i,
                )
            )
        return count

    def measure(self) -> None:
        """End the warm-up."""
        for pipe in self._active:
            pipe.send(MEASURE)

    def finish(self) -> Iterator[Sample]:
        """End the turn; yield the remaining samples."""
        for pipe in self._active:
            pipe.send(FINISH)
        unfinished = set(self._active)
        while unfinished:
            for pipe in wait(unfinished):
                sample: Sample = self._receive(pipe)
                yield sample
                if sample.is_last:
                    unfinished.discard(pipe)

    def samples(self, seconds: float) -> Iterator[Sample]:
        """Yield the samples of the next ``seconds``."""
        end_s = monotonic() + seconds
        while (left_s := end_s - monotonic()) > 0:
            for pipe in wait(self._active, left_s):
                yield self._receive(pipe)

    def _receive(self, pipe: Any) -> Any:
        try:
            return pipe.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError("a process that makes the load has ended") from error
