"""A real ``heed serve`` in a process of its own, and what it takes of the machine."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.soak.check import Check

ROOT = Path(__file__).parents[2]
START = 120  # seconds, at most


class Served:
    def __init__(self, process: subprocess.Popen, log: IO[str]) -> None:
        self.process = process
        self._log = log
        self.port = 0

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def resident(self) -> int:
        """Bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def is_sound(self) -> Check:
        """It runs, and nothing unexpected happened in it."""
        _, _, trouble = self.log().partition("Traceback")
        print(trouble[:5000], end="")
        found = trouble[:100] or f"{self.resident() >> 20} MiB"
        return Check(
            "the server runs, without a traceback in its log", found, self.process.poll() is None and not trouble
        )


@contextmanager
def served(repository: Path, *flags: str) -> Iterator[Served]:
    """A server over ``repository`` on a free port, once it is ready.

    Raises:
        RuntimeError: it does not get ready; with its log.
    """
    with tempfile.TemporaryFile("w+") as log:
        where = ["--port", "0", "--model-repository", str(repository.resolve())]
        command = [sys.executable, "-m", "service", *where, *flags]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            one, end = Served(process, log), time.monotonic() + START
            while "ready: " not in one.log():
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(one.log())
                time.sleep(0.1)
            one.port = int(re.search(r"listening on http://[^:]+:(\d+)", one.log())[1])
            yield one
        finally:
            process.terminate()
            process.wait()
