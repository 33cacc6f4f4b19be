"""The pool of worker processes that generate the load together."""

from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from time import monotonic
from typing import Any, Self

from loadtest.generator.load import Sample, Turn
from loadtest.generator.worker import FINISH, MEASURE, run

END_S = 5  # for a worker to end, before it is killed


class WorkerPool:
    """A context manager that runs ``processes`` workers."""

    def __init__(self, processes: int) -> None:
        self._size = processes
        self._pipes: list[Any] = []
        self._processes: list[SpawnProcess] = []
        self._active: list[Any] = []  # pipes of the workers that take part in the turn

    def __enter__(self) -> Self:
        context = get_context("spawn")  # a fork would inherit the threads and the sockets of this process
        for _ in range(self._size):
            parent_end, worker_end = context.Pipe()
            process = context.Process(target=run, args=(worker_end,))
            process.start()
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
            process.join(END_S)
            process.kill()
            process.join()

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
            raise RuntimeError("a process of the load generator has exited") from error
