"""A server's processes: started, waited for, watched, stopped."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import psutil


class Processes:
    """A process and all its descendants; of none, where a server is somebody else's."""

    def __init__(self, root: psutil.Process | None = None) -> None:
        self._root = root

    def all(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)] if self._root else []
        except psutil.NoSuchProcess:
            return []

    def cpu(self) -> float:
        """Processor seconds so far."""
        return sum(sum(times[:2]) for times in self._each("cpu_times"))

    def rss(self) -> int:
        """Bytes resident; what processes share counts once in each."""
        return sum(memory[0] for memory in self._each("memory_info"))

    def _each(self, what: str) -> Iterator[tuple[Any, ...]]:
        for process in self.all():
            try:
                yield getattr(process, what)()
            except psutil.NoSuchProcess:
                continue

    def settle(self, seconds: float = 120) -> bool:
        """Wait until work that nobody waits for any more is done; False if it still goes on after so long."""
        end, before = monotonic() + seconds, self.cpu()
        while monotonic() < end:
            sleep(0.2)
            now = self.cpu()
            if now - before <= 0.02:  # a tenth of a core
                return True
            before = now
        return False


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path) -> Iterator[Processes]:
    """``command`` while the context lasts, in a session of its own: an interrupt does not reach it before us."""
    with log.open("wb") as output:
        process = psutil.Popen(
            command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    processes = Processes(process)
    try:
        yield processes
    finally:
        _stop(processes.all())


def _stop(family: list[psutil.Process]) -> None:
    """The first is asked to end, and given time to end the others; then each is."""
    for several, kill in ((family[:1], False), (family, False), (family, True)):
        for process in several:
            try:
                process.kill() if kill else process.terminate()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=8)


@contextmanager
def peak_rss(processes: Processes) -> Iterator[list[int]]:
    """The one number in the list is the highest sum of resident bytes, looked at four times a second."""
    peak, done = [0], Event()

    def watch() -> None:
        while not done.wait(0.25):
            peak[0] = max(peak[0], processes.rss())

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
        peak[0] = max(peak[0], processes.rss())


def busy() -> float:
    """Processor seconds that all cores have worked so far, or were taken away by the machine beneath."""
    times = psutil.cpu_times()
    return float(sum(getattr(times, of, 0.0) for of in ("user", "system", "nice", "irq", "softirq", "steal")))
