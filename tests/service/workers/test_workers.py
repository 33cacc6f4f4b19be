"""Several processes on one port: connections spread evenly, and the service outlives its workers."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import onnxruntime
import pytest

from tests.support.http_client import SLOW, Clients, Connection, open_connections, rows_of_512
from tests.support.server import ServerProcess, command, fork_server, is_pending, launched, started
from tests.support.waiting import until

EXTENDED = pytest.mark.extended


@pytest.fixture(scope="module")
def server_of_two(adder, tmp_path_factory) -> Iterator[ServerProcess]:
    with started(adder, tmp_path_factory.mktemp("shared") / "log", "--workers", "2") as server:
        yield server


@pytest.fixture
def shared(server_of_two) -> ServerProcess:
    """A server of two workers, which are ready, get connections, and may be replaced."""

    def is_settled() -> bool:
        log = server_of_two.log.read_text()
        if log.count("ready: ") < log.count("Started server process") or len(server_of_two.workers()) != 2:
            return False
        with ExitStack() as stack:
            open_connections(server_of_two, 2, stack)
            return server_of_two.spread() == [1, 1]

    until(is_settled)
    return server_of_two


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=EXTENDED)])
def test_connections_spread_evenly(adder, tmp_path, workers):
    """After many of one request each, too, and after others went, whichever worker these were on."""
    with started(adder, tmp_path / "log", "--workers", str(workers)) as service, ExitStack() as stack:
        for _ in range(50):
            with closing(Connection(service.port)) as connection:
                connection.request("GET", "/v2/health/live", headers={"Connection": "close"})
                assert connection.getresponse().read() == b'{"live":true}'
        until(lambda: service.spread() == [0] * workers)
        connections = open_connections(service, 4 * workers, stack)
        assert service.spread() == [4] * workers
        for emptied in service.workers():
            worker_of = service.worker_of()
            kept, *others = [connection for connection in connections if worker_of[connection.own_port] == emptied]
            for connection in others:
                connection.close()
                connections.remove(connection)
            until(lambda: service.spread() == [1, *[4] * (workers - 1)])
            for _ in range(2):
                kept.add()  # the worker has counted what it closed before it answers
            connections += open_connections(service, 3, stack)
            assert service.spread() == [4] * workers


def test_a_killed_worker_is_replaced_and_only_its_connections_fail(shared):
    started_before = shared.logged("ready: ")
    with Clients(shared, 8) as clients:
        worker_of = shared.worker_of()
        assert len(set(worker_of.values())) == 2
        killed = min(shared.workers())
        os.kill(killed, signal.SIGKILL)
        until(lambda: len(shared.workers() - {killed}) == 2)
        until(lambda: shared.logged("ready: ") == started_before + 1)
        clients.each_asks(50)
        assert sorted(clients.failed) == sorted(port for port, worker in worker_of.items() if worker == killed)
        assert f"worker {killed} ended (signal SIGKILL)" in shared.log.read_text()


@pytest.mark.parametrize("way", ["SIGHUP to the service", "SIGTERM to a worker"])
def test_a_renewal_loses_no_request(shared, way):
    """One worker after another is replaced, or the one that was told to end."""
    before = shared.workers()
    told, number, renewed = {
        "SIGHUP to the service": (shared.process.pid, signal.SIGHUP, before),
        "SIGTERM to a worker": (min(before), signal.SIGTERM, {min(before)}),
    }[way]
    with Clients(shared, 8) as clients:
        os.kill(told, number)
        until(lambda: len(shared.workers()) == 2 and not shared.workers() & renewed)
        clients.each_asks(20)
        assert not clients.failed


def test_a_worker_that_stands_still_is_passed_over(shared):
    """What had been handed to it before anyone could know is answered by the other."""
    still = min(shared.workers())
    os.kill(still, signal.SIGSTOP)
    try:
        with ExitStack() as stack:
            open_connections(shared, 8, stack)
    finally:
        os.kill(still, signal.SIGCONT)


@EXTENDED
def test_workers_end_with_their_supervisor(two):
    """Even if it is killed: they answer what they have begun, and go."""
    workers = two.workers()
    with closing(Connection(two.port)) as slow:
        slow.request("POST", "/v2/models/slow/infer", SLOW)
        until(lambda: two.gauge("runs_in_progress") == 1)
        two.process.kill()
        assert slow.getresponse().status == 200
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    with pytest.raises(ConnectionRefusedError):
        Connection(two.port)


def kill_all(workers: set[int]) -> None:
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


@EXTENDED
def test_a_service_that_was_never_ready_gives_up(adder, tmp_path):
    with launched(command(adder, "--workers", "2"), tmp_path / "log") as service:

        def ended() -> bool:
            kill_all(service.workers())
            return service.process.poll() is not None

        until(ended)
        assert service.ended() == 1
        assert "ready: " not in service.log.read_text()
        assert "6 workers in a row exited within 10 s of their start: giving up" in service.log.read_text()


@EXTENDED
def test_a_service_that_was_ready_never_gives_up(two):
    """It waits longer and longer before it replaces workers that end at once, and serves as soon as they live."""

    def killed() -> int:
        assert two.process.poll() is None
        kill_all(two.workers())
        return two.logged("ended (signal SIGKILL)")

    until(lambda: killed() >= 6, 120)
    until(lambda: all(two.is_ready() for _ in range(4)), 120)
    two.add()
    assert "giving up" not in two.log.read_text()


@pytest.mark.parametrize("while_", ["it drains", "a run lasts"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_ends_it_at_once(adder, models, tmp_path, workers, while_):
    folder, drain_s = (adder, "300") if while_ == "it drains" else (models, "0")
    flags = ["--workers", str(workers), "--drain-seconds", drain_s]
    with started(folder, tmp_path / "log", *flags) as service, closing(Connection(service.port)) as slow:
        if while_ == "a run lasts":
            slow.request("POST", "/v2/models/slow/infer", rows_of_512(512))
            until(lambda: service.gauge("runs_in_progress") == 1)
        service.process.terminate()
        until(lambda: not is_pending(service.process.pid, signal.SIGTERM))
        if while_ == "it drains":
            until(lambda: not service.is_ready())
        elif workers > 1:
            until(lambda: "stopping 2 workers" in service.log.read_text())
        service.process.terminate()
        assert service.ended() == 128 + signal.SIGTERM


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("cause", ["port", "repository", "provider"])
def test_a_start_that_fails_says_why(adder, tmp_path, workers, cause):
    if cause == "provider" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA: pip install onnxruntime in place of onnxruntime-gpu")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags, status, said = {
            "port": (["--port", port], 1, f"cannot listen on 127.0.0.1, port {port}: Address already in use"),
            "repository": (["--model-repository", "nowhere"], 2, "'nowhere' is not a readable folder: No such file"),
            "provider": (["--provider", "cuda"], 1, "provider cuda: this ONNX Runtime is built without CUDA"),
        }[cause]
        arguments = ["--port", "0", "--model-repository", str(adder), *flags, "--workers", workers]
        process = fork_server().start(arguments, tmp_path / "log", os.environ)
        ended = process.wait(60)
    printed = (tmp_path / "log").read_text()
    assert ended == status, printed
    assert printed.count(said) == 1
    assert "Traceback" not in printed
