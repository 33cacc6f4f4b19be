"""Processes whose event loop stands still with the interpreter's lock held, so that no Python code can end them."""

import os
import signal
import sys
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.server import launched
from tests.support.waiting import until

EXTENDED = pytest.mark.extended
WORKERS = pytest.mark.parametrize("workers", [1, pytest.param(2, marks=EXTENDED)])
SCRIPT = Path(__file__).with_name("stuck.py")


@contextmanager
def stuck(models, folder, workers, hung=300.0):
    """A service of which one process is stuck, and that process's id."""
    flags = ["--port", "0", "--workers", str(workers), "--model-repository", str(models)]
    file = folder / "stuck"
    root = Path(__file__).parents[3]
    environment = {"HUNG": str(hung), "STUCK": str(file), "PYTHONPATH": f"{root}{os.pathsep}{root / 'clients'}"}
    with launched([sys.executable, SCRIPT, *flags], folder / "log", environment=environment) as service:
        pids = {service.process.pid}
        try:
            until(lambda: service.logged("ready: ") == workers)
            until(service.is_ready)
            pids |= service.workers()
            with closing(service.connect()) as connection:
                connection.request("GET", "/v2/health/stuck")
                yield service, int(until(lambda: file.exists() and file.read_text()))
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    """It has ended, though whoever inherited it may not have asked for its status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@EXTENDED
def test_a_second_signal_ends_a_supervisor_with_a_stuck_worker(adder, tmp_path):
    with stuck(adder, tmp_path, 2) as (service, pid):
        service.process.terminate()
        until(lambda: "stopping 2 workers" in service.log.read_text())
        assert service.process.poll() is None
        service.process.terminate()
        assert service.ended() == 128 + signal.SIGTERM
        until(lambda: gone(pid))


@WORKERS
def test_it_ends_without_a_signal(adder, tmp_path, workers):
    """With what each thread was doing in the log; a worker is replaced, a process alone has status 1."""
    with stuck(adder, tmp_path, workers, hung=2) as (service, pid):
        if workers == 1:
            assert service.ended() == 1
        else:
            until(lambda: pid not in service.workers() and len(service.workers()) == 2)
            service.add()
        assert "stuck.py" in service.log.read_text()


@EXTENDED
def test_a_stuck_worker_does_not_outlive_its_supervisor(adder, tmp_path):
    """It cannot notice that the supervisor was killed, and ends when it has stood still for too long."""
    with stuck(adder, tmp_path, 2, hung=3) as (service, pid):
        others = service.workers() - {pid}
        service.process.kill()
        until(lambda: all(map(gone, others)))
        until(lambda: gone(pid))
