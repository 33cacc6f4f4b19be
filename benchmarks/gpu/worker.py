"""A process of its own for what may take its process down with it: told in JSON, answering in JSON lines."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from tempfile import TemporaryFile
from threading import Timer
from typing import Any

from benchmarks.gpu.rows import ROOT

MARK = "ANSWER "


class WorkerDied(RuntimeError):
    """The process ended before it had answered; the message is the end of what it wrote."""


def ask(module: str, asked: Mapping[str, Any], seconds: float) -> Iterator[dict[str, Any]]:
    """What ``python -m module`` answers, as it comes; it is ended after so many seconds.

    Raises:
        WorkerDied: it ended by a signal, or with another status than 0.
    """
    with TemporaryFile("w+") as log:
        command = [sys.executable, "-m", module, json.dumps(asked)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            alarm = Timer(seconds, process.kill)
            alarm.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith(MARK):
                        yield json.loads(line.removeprefix(MARK))
                process.wait()
            finally:
                alarm.cancel()
                process.kill()
        if process.returncode:
            log.seek(0)
            said = [line for line in log.read().splitlines() if line[:1].strip()][-3:]  # not a traceback's inside
            raise WorkerDied(f"status {process.returncode}: {' / '.join(said)}"[:500])


def told() -> Any:
    """In the worker: what it was asked."""
    return json.loads(sys.argv[1])


def answer(**found: Any) -> None:
    """In the worker."""
    print(MARK + json.dumps(found), flush=True)
