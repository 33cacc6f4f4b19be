"""Processes of servers under test: start, wait, measure, stop. ``served`` starts ``heed serve``."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil

from benchmarks import ROOT
from benchmarks.soak.check import Check

START_S = 120  # time limit until a server is ready


class Processes:
    """A process and all its descendants; none for a server that was not started here."""

    def __init__(self, root: psutil.Process | None = None) -> None:
        self._root = root

    def all(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)] if self._root else []
        except psutil.NoSuchProcess:
            return []

    def cpu_s(self) -> float:
        """Processor time so far."""
        return sum(sum(times[:2]) for times in self._each("cpu_times"))

    def resident_bytes(self) -> int:
        """The sum of resident memory; shared pages count in each process."""
        return sum(memory[0] for memory in self._each("memory_info"))

    def _each(self, method: str) -> Iterator[tuple[Any, ...]]:
        for process in self.all():
            try:
                yield getattr(process, method)()
            except psutil.NoSuchProcess:
                continue

    def settle(self, timeout_s: float = 120) -> bool:
        """Wait until the processes finish the work of aborted requests; return False after ``timeout_s``."""
        end_s, before_s = monotonic() + timeout_s, self.cpu_s()
        while monotonic() < end_s:
            sleep(0.2)
            now_s = self.cpu_s()
            if now_s - before_s <= 0.02:  # a tenth of a core
                return True
            before_s = now_s
        return False


class Served:
    """A running ``heed serve`` with one process."""

    def __init__(self, process: psutil.Process, log: Path) -> None:
        self.process = process
        self._log = log
        self.port = 0

    @property
    def is_running(self) -> bool:
        return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def resident_bytes(self) -> int:
        return self.process.memory_info().rss

    def descriptors(self) -> int:
        return self.process.num_fds()

    def check(self) -> Check:
        """Check that the server still runs and has logged no traceback."""
        _, _, traceback = self.log().partition("Traceback")
        print(traceback[:5000], end="")
        observed = traceback[:100] or (f"{self.resident_bytes() >> 20} MiB" if self.is_running else "it ended")
        return Check("the server runs, without a traceback in its log", observed, self.is_running and not traceback)


@contextmanager
def served(repository: Path, *flags: str) -> Iterator[Served]:
    """Start a server on ``repository`` and a free port; wait until it is ready.

    Raises:
        RuntimeError: the server does not become ready; the message is its log.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        options = ["--port", "0", "--model-repository", str(repository.resolve())]
        command = [sys.executable, "-m", "service", *options, *flags]
        with started(command, os.environ, ROOT, log) as processes:
            server, end_s = Served(processes.all()[0], log), monotonic() + START_S
            while "ready: " not in server.log():
                if not server.is_running or monotonic() > end_s:
                    raise RuntimeError(server.log())
                sleep(0.1)
            server.port = int(re.search(r"listening on http://[^:]+:(\d+)", server.log())[1])
            yield server


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path) -> Iterator[Processes]:
    """Run ``command`` while the context lasts, in its own session, so that an interrupt reaches only this process."""
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
    """Terminate the parent, so that it can stop its children; then terminate all; then kill all."""
    for several, kill in ((family[:1], False), (family, False), (family, True)):
        for process in several:
            try:
                process.kill() if kill else process.terminate()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=8)


def machine_cpu_s() -> float:
    """Processor time of all cores so far, with the time stolen by the hypervisor."""
    times = psutil.cpu_times()
    return float(sum(getattr(times, kind, 0.0) for kind in ("user", "system", "nice", "irq", "softirq", "steal")))
