"""Several processes on one port: connections spread evenly, and the service outlives its workers."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import onnxruntime
import pytest

from tests.support import graphs

ADD = json.dumps(
    {"inputs": [{"name": name, "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]} for name in ("x", "z")]}
)
ADDED = [3.0, 5.0, 7.0]
ROWS = 128
SLOW = json.dumps({"inputs": [{"name": "x", "shape": [ROWS, 512], "datatype": "FP32", "data": [1.0] * ROWS * 512}]})
PARTING = (http.client.IncompleteRead, ConnectionError)


class Connection(http.client.HTTPConnection):
    """A client that keeps its one connection, and never opens another by itself."""

    auto_open = 0

    def __init__(self, port: int, trust: ssl.SSLContext | None = None) -> None:
        super().__init__("127.0.0.1", port, timeout=60)
        self.connect()
        if trust:
            self.sock = trust.wrap_socket(self.sock, server_hostname="127.0.0.1")
        self.own_port = self.sock.getsockname()[1]
        self.closing = False

    def ask(self, path: str, body: str | None = None) -> bytes:
        """The body of a good answer; ``closing`` when the server said it is the last."""
        self.request("POST" if body else "GET", path, body)
        response = self.getresponse()
        assert response.status == 200, response.read()
        self.closing = response.will_close
        return response.read()

    def add(self) -> None:
        assert json.loads(self.ask("/v2/models/adder/infer", ADD))["outputs"][0]["data"] == ADDED


class Service:
    """A running ``heed serve``."""

    def __init__(self, process: subprocess.Popen, log: Path, trust: ssl.SSLContext | None = None) -> None:
        self.process = process
        self.log = log
        self._trust = trust
        self.port = int(until(lambda: re.search(r"listening on https?://127\.0\.0\.1:(\d+)", log.read_text()))[1])

    def is_ready(self) -> bool:
        """What the next worker in turn says."""
        with closing(Connection(self.port, self._trust)) as connection:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200

    def gauge(self, name: str) -> float:
        """What ``/metrics`` says ``heed_<name>`` is, over all workers."""
        with closing(Connection(self.port, self._trust)) as connection:
            return float(re.search(rf"^heed_{name} (\S+)$", connection.ask("/metrics").decode(), re.MULTILINE)[1])

    def workers(self) -> set[int]:
        """The processes beneath the supervisor."""
        try:
            return set(map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()))
        except OSError:
            return set()

    def worker_of(self) -> dict[int, int]:
        """Client's port -> the worker that holds its connection, for all that are open."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        address = f"0100007F:{self.port:04X}"
        ports = {
            line[9]: int(line[2].partition(":")[2], 16) for line in lines if line[1] == address and line[3] == "01"
        }
        found = {}
        for worker in self.workers():
            for descriptor in Path(f"/proc/{worker}/fd").iterdir():
                with suppress(OSError):
                    name = os.readlink(descriptor)
                    if name.startswith("socket:[") and name[8:-1] in ports:
                        found[ports[name[8:-1]]] = worker
        return found

    def spread(self) -> list[int]:
        """How many connections each worker holds."""
        counts = Counter(self.worker_of().values())
        return sorted(counts[worker] for worker in self.workers())

    def ended(self, seconds: float = 30) -> int:
        """The exit status as shells and containers have it: 128 and the signal's number, where one ended it."""
        status = self.process.wait(seconds)
        return 128 - status if status < 0 else status


def until(true: Callable, seconds: float = 30):
    """What ``true`` answers as soon as that counts as true; fails when it never does."""
    end = time.monotonic() + seconds
    while not (answer := true()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return answer


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    graphs.adder(folder / "adder" / "1")
    graphs.slow(folder / "slow" / "1", 2000)
    return folder


@contextmanager
def started(
    models: Path,
    log: Path,
    *flags: str,
    descriptors: int = 1024,
    trust: ssl.SSLContext | None = None,
    becomes_ready: bool = True,
) -> Iterator[Service]:
    """A service on a port of its own choice, once all its workers have loaded their models."""
    command = [sys.executable, "-m", "service", "--port", "0", "--model-repository", str(models), *flags]
    command = ["bash", "-c", f'ulimit -Sn {descriptors} && exec "$@"', "bash", *command]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        service = Service(process, log, trust)
        workers = int(flags[flags.index("--workers") + 1])
        until(lambda: log.read_text().count("ready: ") == workers)
        if becomes_ready:
            until(lambda: all(service.is_ready() for _ in range(2 * workers)))  # which log it just before they are
        yield service
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def two(models, tmp_path) -> Iterator[Service]:
    with started(models, tmp_path / "log", "--workers", "2") as service:
        yield service


def opened(service: Service, count: int, stack: ExitStack) -> list[Connection]:
    """New connections, each with an answer; ``stack`` closes them."""
    new = [stack.enter_context(closing(Connection(service.port))) for _ in range(count)]
    for connection in new:
        connection.add()
    return new


class Clients:
    """``count`` clients that ask without pause and note what failed; then, and when the server closes a connection,
    they open another, or leave it at that."""

    def __init__(self, service: Service, count: int, reopen: bool = True) -> None:
        self.connections = [Connection(service.port) for _ in range(count)]
        self.asked = [0] * count
        self.failed: list[int] = []  # the client's port, for each request
        self.wrong: list[BaseException] = []
        self._service = service
        self._reopen = reopen
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        until(lambda: self.wrong or min(self.asked) > 20)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.wrong

    def each_asks(self, times: int) -> None:
        before = list(self.asked)
        until(lambda: self.wrong or all(now >= then + times for now, then in zip(self.asked, before, strict=True)))

    def _ask(self, number: int) -> None:
        connection = self.connections[number]
        try:
            while not self._stop.is_set():
                try:
                    connection.add()
                except PARTING:
                    self.failed.append(connection.own_port)
                    connection.closing = True
                self.asked[number] += 1
                if connection.closing:
                    connection.close()
                    if not self._reopen:
                        return
                    connection = self.connections[number] = Connection(self._service.port)
        except BaseException as error:
            self.wrong.append(error)
        finally:
            connection.close()


@pytest.mark.parametrize("workers", [2, 3])
def test_connections_spread_evenly(models, tmp_path, workers):
    """Also those that come after others went, whichever worker these were on."""
    with started(models, tmp_path / "log", "--workers", str(workers)) as service, ExitStack() as stack:
        connections = opened(service, 4 * workers, stack)
        assert service.spread() == [4] * workers
        for emptied in service.workers():
            worker_of = service.worker_of()
            for connection in [one for one in connections if worker_of[one.own_port] == emptied]:
                connection.close()
                connections.remove(connection)
            until(lambda: service.spread() == [0, *[4] * (workers - 1)])
            time.sleep(0.05)  # the worker counts what it has closed
            connections += opened(service, 4, stack)
            assert service.spread() == [4] * workers


def test_connections_of_one_request_spread_evenly(two):
    for _ in range(50):
        connection = Connection(two.port)
        connection.request("GET", "/v2/health/live", headers={"Connection": "close"})
        assert connection.getresponse().read() == b'{"live":true}'
        connection.close()
    until(lambda: two.spread() == [0, 0])
    with ExitStack() as stack:
        opened(two, 8, stack)
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
    with started(models, tmp_path / "log", "--workers", str(workers)) as service:
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
            opened(two, 8, stack)
    finally:
        os.kill(still, signal.SIGCONT)


def test_more_connections_than_descriptors_wait(models, tmp_path):
    """They are answered when others go; nobody is turned away."""
    with started(models, tmp_path / "log", "--workers", "2", descriptors=140) as service, ExitStack() as stack:
        full = opened(service, 140, stack)
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
    command = [sys.executable, "-m", "service", "--port", "0", "--model-repository", str(models), "--workers", "2"]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        service = Service(process, log)
        while process.poll() is None:
            kill_all(service.workers())
            time.sleep(0.02)
        assert service.ended() == 1
        assert "ready: " not in log.read_text()
        assert "6 workers in a row ended within 10 s of their start: giving up" in log.read_text()
    finally:
        process.kill()
        process.wait()


def test_a_service_that_was_ready_never_gives_up(two):
    """It waits longer and longer before it replaces workers that end at once, and serves as soon as they live."""
    while two.log.read_text().count("ended (signal SIGKILL)") < 6:
        assert two.process.poll() is None
        kill_all(two.workers())
        time.sleep(0.02)
    until(lambda: all(two.is_ready() for _ in range(4)), 60)
    with closing(Connection(two.port)) as connection:
        connection.add()
    assert "giving up" not in two.log.read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_second_signal_ends_it_at_once(models, tmp_path, workers):
    with (
        started(models, tmp_path / "log", "--workers", str(workers)) as service,
        closing(Connection(service.port)) as slow,
    ):
        slow.request("POST", "/v2/models/slow/infer", SLOW)
        until(lambda: service.gauge("runs_in_progress") == 1)
        service.process.terminate()
        time.sleep(0.3)
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
        command = [sys.executable, "-m", "service", "--port", "0", "--model-repository", str(models)]
        done = subprocess.run([*command, *flags, "--workers", workers], capture_output=True, text=True)
    printed = done.stdout + done.stderr
    assert done.returncode == status, printed
    assert printed.count(said) == 1
    assert "Traceback" not in printed
