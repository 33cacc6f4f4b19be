"""Several processes on one port: connections spread evenly, and the service outlives its workers."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import onnxruntime
import pytest

from tests.support.http_client import SLOW, Clients, Connection, open_connections, rows_of_512
from tests.support.server import command, is_pending, launched, started
from tests.support.waiting import until


@pytest.mark.parametrize("workers", [2, 3])
def test_connections_spread_evenly(models, tmp_path, workers):
    """Also those that come after others went, whichever worker these were on."""
    with started(models, tmp_path / "log", "--workers", str(workers)) as service, ExitStack() as stack:
        connections = open_connections(service, 4 * workers, stack)
        assert service.spread() == [4] * workers
        for emptied in service.workers():
            worker_of = service.worker_of()
            for connection in [one for one in connections if worker_of[one.own_port] == emptied]:
                connection.close()
                connections.remove(connection)
            until(lambda: service.spread() == [0, *[4] * (workers - 1)])
            time.sleep(0.5)  # the worker counts what it has closed, and no metric shows that count
            connections += open_connections(service, 4, stack)
            assert service.spread() == [4] * workers


def test_connections_of_one_request_spread_evenly(two):
    for _ in range(50):
        connection = Connection(two.port)
        connection.request("GET", "/v2/health/live", headers={"Connection": "close"})
        assert connection.getresponse().read() == b'{"live":true}'
        connection.close()
    until(lambda: two.spread() == [0, 0])
    with ExitStack() as stack:
        open_connections(two, 8, stack)
        assert two.spread() == [4, 4]


def test_a_killed_worker_is_replaced_and_only_its_connections_fail(two):
    with Clients(two, 8) as clients:
        worker_of = two.worker_of()
        assert sorted(Counter(worker_of.values()).values()) == [4, 4]
        killed = min(two.workers())
        os.kill(killed, signal.SIGKILL)
        until(lambda: len(two.workers() - {killed}) == 2)
        until(lambda: two.log.read_text().count("ready: ") == 3)
        clients.each_asks(50)
        assert sorted(clients.failed) == sorted(port for port, worker in worker_of.items() if worker == killed)
        assert f"worker {killed} ended (signal SIGKILL)" in two.log.read_text()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_loses_no_request(models, tmp_path, workers, number):
    """What runs is answered, a long one too; every connection is closed with an answer that says so."""
    with started(models, tmp_path / "log", "--workers", str(workers), linger_s=10) as service:
        answers: list[bytes] = []
        slow = Connection(service.port)
        long = threading.Thread(target=lambda: answers.append(slow.ask("/v2/models/slow/infer", SLOW)))
        with Clients(service, 8, reopen=False) as clients:
            long.start()
            until(lambda: service.gauge("runs_in_progress") == 1)
            service.process.send_signal(number)
            assert service.ended() == 0
            long.join()
        slow.close()
        assert len(answers) == 1
        assert not clients.failed


def test_a_renewal_loses_no_request(two):
    """SIGHUP: one worker after another is replaced."""
    before = two.workers()
    with Clients(two, 8) as clients:
        two.process.send_signal(signal.SIGHUP)
        until(lambda: two.log.read_text().count("Finished server process") == 2)
        clients.each_asks(20)
        assert not clients.failed
    after = until(lambda: len(two.workers()) == 2 and two.workers())
    assert not after & before


def test_a_worker_told_to_end_is_replaced_without_loss(two):
    with Clients(two, 8) as clients:
        told = min(two.workers())
        os.kill(told, signal.SIGTERM)
        until(lambda: told not in two.workers() and len(two.workers()) == 2)
        clients.each_asks(20)
        assert not clients.failed


def test_a_worker_that_stands_still_is_passed_over(two):
    """What had been handed to it before anyone could know is answered by the other."""
    still = min(two.workers())
    os.kill(still, signal.SIGSTOP)
    try:
        with ExitStack() as stack:
            open_connections(two, 8, stack)
    finally:
        os.kill(still, signal.SIGCONT)


def test_more_connections_than_descriptors_wait(models, tmp_path):
    """They are answered when others go; nobody is turned away."""
    with started(models, tmp_path / "log", "--workers", "2", descriptors=140) as service, ExitStack() as stack:
        full = open_connections(service, 140, stack)
        assert service.spread() == [70, 70]
        late = [stack.enter_context(closing(Connection(service.port))) for _ in range(20)]
        for connection in late:
            connection.request("GET", "/v2/health/live")
        time.sleep(0.3)
        assert service.spread() == [70, 70]
        for connection in full:
            connection.add()
            connection.close()
        assert {connection.getresponse().read() for connection in late} == {b'{"live":true}'}


def test_workers_end_with_their_supervisor(two):
    """Even if it is killed: they answer what they have begun, and go."""
    workers = two.workers()
    answers: list[bytes] = []
    slow = Connection(two.port)
    long = threading.Thread(target=lambda: answers.append(slow.ask("/v2/models/slow/infer", SLOW)))
    long.start()
    until(lambda: two.gauge("runs_in_progress") == 1)
    two.process.kill()
    long.join()
    slow.close()
    assert len(answers) == 1
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    with pytest.raises(ConnectionRefusedError):
        Connection(two.port)


def kill_all(workers: set[int]) -> None:
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def test_a_service_that_was_never_ready_gives_up(models, tmp_path):
    with launched(command(models, "--workers", "2"), tmp_path / "log") as service:

        def ended() -> bool:
            kill_all(service.workers())
            return service.process.poll() is not None

        until(ended)
        assert service.ended() == 1
        assert "ready: " not in service.log.read_text()
        assert "6 workers in a row ended within 10 s of their start: giving up" in service.log.read_text()


def test_a_service_that_was_ready_never_gives_up(two):
    """It waits longer and longer before it replaces workers that end at once, and serves as soon as they live."""

    def killed() -> int:
        assert two.process.poll() is None
        kill_all(two.workers())
        return two.log.read_text().count("ended (signal SIGKILL)")

    until(lambda: killed() >= 6, 120)
    until(lambda: all(two.is_ready() for _ in range(4)), 120)
    with closing(Connection(two.port)) as connection:
        connection.add()
    assert "giving up" not in two.log.read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_ends_it_at_once(models, tmp_path, workers):
    with (
        started(models, tmp_path / "log", "--workers", str(workers)) as service,
        closing(Connection(service.port)) as slow,
    ):
        slow.request("POST", "/v2/models/slow/infer", rows_of_512(512))
        until(lambda: service.gauge("runs_in_progress") == 1)
        service.process.terminate()
        until(lambda: not is_pending(service.process.pid, signal.SIGTERM))
        if workers > 1:
            until(lambda: "ending 2 workers" in service.log.read_text())
        service.process.terminate()
        assert service.ended() == 128 + signal.SIGTERM


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("what", ["port", "repository", "provider"])
def test_a_start_that_fails_says_why(models, tmp_path, workers, what):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags, status, said = {
            "port": (["--port", str(port)], 1, f"cannot listen on 127.0.0.1, port {port}: Address already in use"),
            "repository": (["--model-repository", "nowhere"], 2, "'nowhere' is no readable folder: No such file"),
            "provider": (["--provider", "cuda"], 1, "provider cuda: this ONNX Runtime is built without CUDA"),
        }[what]
        if what == "provider" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            pytest.skip("this ONNX Runtime has CUDA")
        done = subprocess.run(command(models, *flags, "--workers", workers), capture_output=True, text=True)
    printed = done.stdout + done.stderr
    assert done.returncode == status, printed
    assert printed.count(said) == 1
    assert "Traceback" not in printed
