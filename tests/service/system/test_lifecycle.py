"""Ready when all are, not ready from the signal to end on, and served until the time to drain is over."""

import os
import shutil
import signal
import socket
from contextlib import ExitStack, closing

import httpx
import pytest

from tests.support import graphs
from tests.support.http_client import ADD, SLOW, Clients, Connection, open_connections, rows_of_512
from tests.support.server import command, launched, started
from tests.support.waiting import until

EXTENDED = pytest.mark.extended
WORKERS = pytest.mark.parametrize("workers", [1, pytest.param(2, marks=EXTENDED)])


@EXTENDED
@pytest.mark.parametrize("workers", [1, 2])
def test_it_drains_before_it_ends(models, tmp_path, workers):
    """Not ready at once; new and old connections are served on; then nothing is lost, and the status is 0."""
    flags = ["--workers", str(workers), "--drain-seconds", "5"]  # a machine under load may stand still for some seconds
    with started(models, tmp_path / "log", *flags, linger_s=10) as service, Clients(service, 4) as clients:
        slow = Connection(service.port)
        service.process.terminate()
        until(lambda: not service.is_ready())
        assert all(not service.is_ready() for _ in range(2 * workers))
        with closing(Connection(service.port)) as late:
            for _ in range(20):
                late.add()
        clients.each_asks(20)
        assert not service.is_ready()
        with closing(slow):
            slow.ask("/v2/models/slow/infer", rows_of_512(256))
        assert service.ended() == 0
        assert not clients.failed


@EXTENDED
def test_a_worker_that_dies_while_draining_is_replaced(models, tmp_path):
    with started(models, tmp_path / "log", "--workers", "2", "--drain-seconds", "6") as service:
        service.process.terminate()
        until(lambda: not service.is_ready())
        killed = min(service.workers())
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in service.workers())
        for _ in range(4):
            service.add()
        assert service.ended() == 0


@EXTENDED
def test_no_worker_says_ready_before_all_are(tmp_path):
    """One is stopped while it loads: the other, which has loaded, says that the service is not ready."""
    graphs.slow_to_load(tmp_path / "models" / "late" / "1", 5)
    with launched(command(tmp_path / "models", "--workers", "2"), tmp_path / "log") as service:
        until(lambda: service.logged("Application startup complete") == 2)
        assert not service.is_ready()  # a connection is handed out when the supervisor has seen all of them live
        stopped = max(service.workers())
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: service.logged("ready: ") == 1)
        for _ in range(8):
            assert not service.is_ready()
        os.kill(stopped, signal.SIGCONT)
        until(service.is_ready)
        assert service.logged("ready: ") == 2
        assert all(service.is_ready() for _ in range(8))


@pytest.mark.parametrize(
    ("workers", "number", "keep"),
    [
        pytest.param(1, signal.SIGTERM, True, id="kept"),
        pytest.param(1, signal.SIGINT, False, id="new", marks=EXTENDED),
        pytest.param(2, signal.SIGINT, True, id="2 kept", marks=EXTENDED),
        pytest.param(2, signal.SIGTERM, False, id="2 new"),
    ],
)
def test_each_request_sent_before_the_end_is_answered(tmp_path, workers, number, keep):
    """Many more than can run at one time, and those of clients that keep a connection, or open one for each."""
    graphs.adder(tmp_path / "models" / "adder" / "1")
    graphs.slow(tmp_path / "models" / "slow" / "1", 20)
    flags = ["--workers", str(workers), "--max-concurrent-runs", "1"]
    answered = 'requests_total{api="v2",model="slow",status="200"}'
    with started(tmp_path / "models", tmp_path / "log", *flags, linger_s=10) as service:
        with Clients(service, 8, keep=keep) as clients, ExitStack() as stack:
            waiting = [stack.enter_context(closing(Connection(service.port))) for _ in range(40)]
            for connection in waiting:
                connection.request("POST", "/v2/models/slow/infer", SLOW)
            until(lambda: service.gauge("requests_queued") or service.gauge(answered) == len(waiting))
            service.process.send_signal(number)
            assert [connection.getresponse().status for connection in waiting] == [200] * len(waiting)
            stack.close()
            assert service.ended() == 0
        assert not clients.failed


@WORKERS
def test_a_request_of_which_a_part_has_come_or_that_waits_behind_another_is_answered(models, tmp_path, workers):
    """A head whose second half comes when the server has begun to end, and requests sent behind one that runs."""
    head = f"POST /v2/models/adder/infer HTTP/1.1\r\nHost: heed\r\nContent-Length: {len(ADD)}\r\n"
    long = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: heed\r\nContent-Length: {len(SLOW)}\r\n\r\n{SLOW}"
    with started(models, tmp_path / "log", "--workers", str(workers), linger_s=10) as service, ExitStack() as stack:
        first, second, *probes = open_connections(service, 2 + workers, stack)  # they spread evenly
        half, behind = first.sock, second.sock
        half.sendall(head.encode())
        behind.sendall(f"{long}{head}\r\n{ADD}{head}\r\n{ADD}".encode())
        until(lambda: service.gauge("runs_in_progress") == 1)
        service.process.terminate()
        for probe in probes:
            until(lambda probe=probe: probe.ask("/v2/health/live") and probe.closing)
        half.sendall(f"\r\n{ADD}".encode())
        assert everything(half).count(b"HTTP/1.1 200 OK") == 1
        assert everything(behind).count(b"HTTP/1.1 200 OK") == 3
        assert service.ended() == 0


def everything(client: socket.socket) -> bytes:
    """What comes until the other end closes the connection."""
    with client.makefile("rb") as file:
        return file.read()


@pytest.mark.parametrize(
    ("mode", "workers"),
    [
        ("start", 1),
        *(pytest.param(*case, marks=EXTENDED) for case in [("start", 2), ("poll", 1), ("poll", 2)]),
        pytest.param("explicit", 1, marks=EXTENDED),  # which takes one worker
    ],
)
def test_the_end_does_not_wait_for_a_load(models, tmp_path, workers, mode):
    """Which here takes minutes: at the start, after a look at the repository, or because a client asked for it."""
    folder = tmp_path / "models"
    shutil.copytree(models / "adder", folder / "adder")
    if mode == "start":
        graphs.slow_to_load(folder / "late" / "1", 300)
    flags = ["--workers", str(workers), "--shutdown-seconds", "2"]
    flags += ["--model-control-mode", "none" if mode == "start" else "poll:0.1" if mode == "poll" else mode]
    with launched(command(folder, *flags), tmp_path / "log") as service:
        until(lambda: service.logged("Application startup complete") == workers)
        if mode != "start":
            until(service.is_ready)
            graphs.slow_to_load(folder / "late" / "1", 300)
        with ExitStack() as stack:
            if mode == "explicit":
                client = stack.enter_context(closing(Connection(service.port)))
                client.request("POST", "/v2/repository/models/late/load")
            until(lambda: states(service)["late"] == "LOADING")
            service.process.terminate()
            assert service.ended() == 0


def states(service):
    """Model -> state, of the index that any worker gives."""
    index = httpx.post(f"{service.url}/v2/repository/index").json()
    return {model["name"]: model.get("state") for model in index}
