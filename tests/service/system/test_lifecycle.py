"""Ready when all are, not ready from the signal to end on, and served until the time to drain is over."""

import json
import os
import shutil
import signal
import threading
import time
from contextlib import ExitStack, closing

import pytest

from tests.support import graphs
from tests.support.http_client import ADD, SLOW, Clients, Connection, rows_of_512
from tests.support.server import command, launched, started
from tests.support.waiting import until

DRAIN = 5.0  # seconds; a machine under load may stand still for some of them


@pytest.mark.parametrize("workers", [1, 2])
def test_it_drains_before_it_ends(models, tmp_path, workers):
    """Not ready at once; new and old connections are served on; then nothing is lost, and the status is 0."""
    flags = ["--workers", str(workers), "--drain-seconds", str(DRAIN)]
    with (
        started(models, tmp_path / "log", *flags, linger_s=10) as service,
        Clients(service, 4, reopen=False) as clients,
    ):
        answers: list[bytes] = []
        slow = Connection(service.port)

        def ask() -> None:
            with closing(slow):
                answers.append(slow.ask("/v2/models/slow/infer", rows_of_512(256)))

        long = threading.Thread(target=ask)
        start = time.monotonic()
        service.process.terminate()
        until(lambda: not service.is_ready())
        assert all(not service.is_ready() for _ in range(2 * workers))
        with closing(Connection(service.port)) as late:
            for _ in range(20):
                late.add()
        clients.each_asks(20)
        assert not service.is_ready()
        long.start()
        assert service.ended() == 0
        assert time.monotonic() - start > DRAIN
        long.join()
        assert len(answers) == 1
        assert not clients.failed


@pytest.mark.parametrize("workers", [1, 2])
def test_what_waits_at_the_end_is_answered(tmp_path, workers):
    """Many times more than can run at one time: nothing that was accepted is lost."""
    graphs.slow(tmp_path / "models" / "slow" / "1", 20)
    flags = ["--workers", str(workers), "--max-concurrent-runs", "1"]
    with started(tmp_path / "models", tmp_path / "log", *flags) as service, ExitStack() as stack:
        waiting = [stack.enter_context(closing(Connection(service.port))) for _ in range(40)]
        for connection in waiting:
            connection.request("POST", "/v2/models/slow/infer", SLOW)
        answered = 'requests_total{api="v2",model="slow",status="200"}'
        until(lambda: service.gauge("requests_in_flight") + service.gauge(answered) >= len(waiting))
        service.process.terminate()
        assert [connection.getresponse().status for connection in waiting] == [200] * 40
        assert service.ended() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_ends_the_draining(models, tmp_path, workers):
    with started(models, tmp_path / "log", "--workers", str(workers), "--drain-seconds", "300") as service:
        service.process.terminate()
        until(lambda: not service.is_ready())
        service.process.terminate()
        assert service.ended() == 128 + signal.SIGTERM


def test_a_worker_that_dies_while_draining_is_replaced(models, tmp_path):
    with started(models, tmp_path / "log", "--workers", "2", "--drain-seconds", "6") as service:
        service.process.terminate()
        until(lambda: not service.is_ready())
        killed = min(service.workers())
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in service.workers())
        for _ in range(4):
            with closing(Connection(service.port)) as connection:
                connection.add()
        assert service.ended() == 0


def test_no_worker_says_ready_before_all_are(tmp_path):
    """One is stopped while it loads: the other, which has loaded, says that the service is not ready."""
    graphs.slow_to_load(tmp_path / "models" / "late" / "1", 5)
    with launched(command(tmp_path / "models", "--workers", "2"), tmp_path / "log") as service:

        def logged(words: str) -> int:
            return service.log.read_text().count(words)

        until(lambda: logged("Application startup complete") == 2)
        assert not service.is_ready()  # a connection is handed out when the supervisor has seen all of them live
        stopped = max(service.workers())
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: logged("ready: ") == 1)
        time.sleep(0.3)
        assert not service.is_ready()
        os.kill(stopped, signal.SIGCONT)
        until(service.is_ready)
        assert logged("ready: ") == 2
        assert all(service.is_ready() for _ in range(8))


class Caller(threading.Thread):
    """A client that asks without pause until its connection is refused; ``keep`` keeps each as long as it may."""

    def __init__(self, service, keep, trust=None):
        super().__init__()
        self.service, self.keep, self.trust = service, keep, trust
        self.answered, self.wrong = 0, []
        self.start()

    def run(self):
        try:
            while True:
                try:
                    connection = Connection(self.service.port, self.trust)
                except ConnectionRefusedError:
                    return
                with closing(connection):
                    connection.add()
                    self.answered += 1
                    while self.keep and not connection.closing:
                        connection.add()
                        self.answered += 1
        except Exception as error:
            self.wrong.append(error)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "new"])
@pytest.mark.parametrize("workers", [1, 2])
def test_each_request_sent_before_the_end_is_answered(models, tmp_path, workers, keep):
    """Of clients that keep their connections, and of such that open one for each request."""
    with started(models, tmp_path / "log", "--workers", str(workers), linger_s=10) as service:
        callers = [Caller(service, keep) for _ in range(8)]
        until(lambda: min(caller.answered for caller in callers) > 20 or any(caller.wrong for caller in callers))
        service.process.terminate()
        for caller in callers:
            caller.join(60)
        assert [caller.wrong for caller in callers] == [[]] * 8
        assert service.ended() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_what_has_come_in_part_or_waits_behind_another_is_answered(models, tmp_path, workers):
    """A head whose second half comes a second after the signal, and requests sent behind one that runs for long."""
    head = f"POST /v2/models/adder/infer HTTP/1.1\r\nHost: heed\r\nContent-Length: {len(ADD)}\r\n"
    long = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: heed\r\nContent-Length: {len(SLOW)}\r\n\r\n{SLOW}"
    with started(models, tmp_path / "log", "--workers", str(workers)) as service, ExitStack() as stack:
        both = [stack.enter_context(closing(Connection(service.port))) for _ in range(2)]
        half, behind = (connection.sock for connection in both)
        half.sendall(head.encode())
        behind.sendall(f"{long}{head}\r\n{ADD}{head}\r\n{ADD}".encode())
        until(lambda: service.gauge("runs_in_progress") == 1)
        if workers > 1:
            until(lambda: service.worker_of().keys() >= {connection.own_port for connection in both})
        service.process.terminate()
        time.sleep(1)
        half.sendall(f"\r\n{ADD}".encode())
        assert everything(half).count(b"HTTP/1.1 200 OK") == 1
        assert everything(behind).count(b"HTTP/1.1 200 OK") == 3
        assert service.ended() == 0


def everything(client):
    """What comes until the other end closes the connection."""
    with client.makefile("rb") as file:
        return file.read()


@pytest.mark.parametrize(
    ("mode", "workers"), [("start", 1), ("start", 2), ("poll", 1), ("poll", 2), ("explicit", 1)]
)  # explicit wants one worker
def test_the_end_does_not_wait_for_a_load(models, tmp_path, workers, mode):
    """Which here takes minutes: at the start, after a look at the repository, or because a client asked for it."""
    folder = tmp_path / "models"
    shutil.copytree(models / "adder", folder / "adder")
    if mode == "start":
        graphs.slow_to_load(folder / "late" / "1", 300)
    flags = ["--workers", str(workers), "--shutdown-seconds", "2", "--model-poll-seconds", "0.1"]
    flags += ["--model-control-mode", "none" if mode == "start" else mode]
    with launched(command(folder, *flags), tmp_path / "log") as service:
        until(lambda: service.log.read_text().count("Application startup complete") == workers)
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
    with closing(Connection(service.port)) as connection:
        return {model["name"]: model.get("state") for model in json.loads(connection.ask("/v2/repository/index", "{}"))}
