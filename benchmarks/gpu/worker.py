"""Work that may crash, in another process: its request is JSON in an argument, its results are JSON lines."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from tempfile import TemporaryFile
from threading import Timer
from typing import Any

from benchmarks.gpu.rows import ROOT

PREFIX = "RESULT "


class WorkerFailed(RuntimeError):
    """The process failed; the message has its status and the last lines of its standard error."""


def run_worker(module: str, request: Mapping[str, Any], timeout_s: float) -> Iterator[dict[str, Any]]:
    """Yield the results of ``python -m module`` one by one; kill it after ``timeout_s``.

    Raises:
        WorkerFailed: it was killed or ended with a status other than 0.
    """
    with TemporaryFile("w+") as log:
        command = [sys.executable, "-m", module, json.dumps(request)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            timer = Timer(timeout_s, process.kill)
            timer.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith(PREFIX):
                        yield json.loads(line.removeprefix(PREFIX))
                process.wait()
            finally:
                timer.cancel()
                process.kill()
        if process.returncode:
            log.seek(0)
            lines = [line for line in log.read().splitlines() if line[:1].strip()][
                -3:
            ]  # without indented traceback lines
            raise WorkerFailed(f"status {process.returncode}: {' / '.join(lines)}"[:500])


def worker_request() -> Any:
    """In the worker: its request."""
    return json.loads(sys.argv[1])


def send_result(**fields: Any) -> None:
    """In the worker: send a result."""
    print(PREFIX + json.dumps(fields), flush=True)
