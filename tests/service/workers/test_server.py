"""How a process of the service accepts connections."""

import os
import signal
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from selectors import EVENT_READ, DefaultSelector

import pytest

from service.http.tls import BUFFERS, CONNECTION_BYTES
from tests.support.http_client import Connection
from tests.support.server import ServerProcess, started
from tests.support.waiting import until

EXTENDED = pytest.mark.extended
WORKERS = pytest.mark.parametrize("workers", [1, pytest.param(2, marks=EXTENDED)])
CONNECTIONS = 256
BACKLOG = 1500
RECORD_BYTES = 1 << 14  # of data in a full record of TLS
MAX_ANSWERS = 32  # to one connection, before all have one


@WORKERS
def test_new_connections_do_not_wait_behind_the_requests_of_others(adder, tmp_path, workers):
    """All are opened while the server stands still. If it accepts one in each turn, the first gets far more answers."""
    answers: Counter[Connection] = Counter()
    with started(adder, tmp_path / "log", "--workers", str(workers)) as service, ExitStack() as stack:
        selector = stack.enter_context(DefaultSelector())
        with standing_still(service):
            for connection in asking(service, CONNECTIONS, stack):
                selector.register(connection.sock, EVENT_READ, connection)
        while len(answers) < CONNECTIONS:
            for key, _ in selector.select(timeout=60):
                connection = key.data
                assert_live(connection)
                answers[connection] += 1
                connection.request("GET", "/v2/health/live")
    assert max(answers.values()) < MAX_ANSWERS


@pytest.mark.parametrize(("workers", "descriptors"), [(1, 100), pytest.param(2, 140, marks=EXTENDED)])
def test_more_connections_than_descriptors_wait(adder, tmp_path, workers, descriptors):
    """They are answered when others go; none is refused."""
    flags = ["--workers", str(workers)]
    with started(adder, tmp_path / "log", *flags, descriptors=descriptors) as service, ExitStack() as stack:
        connections = asking(service, descriptors + 20, stack)
        until(lambda: "cannot accept connections" in service.log.read_text() or service.spread() == [70, 70])
        for connection in connections:
            assert_live(connection)
            connection.close()


@pytest.mark.parametrize(
    ("workers", "descriptors"),
    [
        pytest.param(1, None, id="process"),
        pytest.param(2, None, id="workers", marks=EXTENDED),
        pytest.param(1, 100, id="descriptors"),
    ],
)
def test_connections_that_are_not_accepted_yet_are_answered_at_the_end(adder, tmp_path, workers, descriptors):
    """More than fit into the workers' channels, while the server stands still; or than it has descriptors for."""
    flags = ["--workers", str(workers)]
    with started(adder, tmp_path / "log", *flags, descriptors=descriptors) as service, ExitStack() as stack:
        if descriptors:
            for _ in range(descriptors + 20):
                stack.enter_context(closing(Connection(service.port)))
            until(lambda: "cannot accept connections" in service.log.read_text())
            waiting = asking(service, 40, stack)
            service.process.terminate()
        else:
            with standing_still(service):
                waiting = asking(service, BACKLOG, stack)
                service.process.terminate()
        for connection in waiting:
            assert_live(connection)
        assert service.ended() == 0


@WORKERS
def test_an_idle_tls_client_does_not_delay_the_end(adder, tmp_path, certificate, workers):
    """It does not answer the end of its connection, as it reads nothing."""
    tls = "--tls-certificate", certificate / "certificate", "--tls-key", certificate / "key"
    trust = ssl.create_default_context(cafile=certificate / "certificate")
    with (
        started(adder, tmp_path / "log", "--workers", str(workers), *map(str, tls), trust=trust) as service,
        closing(service.connect()) as connection,
    ):
        assert connection.ask("/v2/health/live") == b'{"live":true}'
        service.process.terminate()
        assert service.ended() == 0
        assert "shutdown exceeded" not in service.log.read_text()


def test_the_buffers_of_tls_are_part_of_the_memory_budget(adder, tmp_path, certificate):
    """They keep the size of the largest request as long as the connection is open."""
    tls = "--tls-certificate", certificate / "certificate", "--tls-key", certificate / "key"
    trust = ssl.create_default_context(cafile=certificate / "certificate")
    with started(adder, tmp_path / "log", *map(str, tls), trust=trust) as service:

        def reserved() -> float:
            return service.gauge("memory_budget_used_bytes") - CONNECTION_BYTES  # that of the connection that asks

        until(lambda: reserved() < CONNECTION_BYTES)
        with closing(service.connect()) as connection:
            connection.ask("/v2/health/live")
            assert CONNECTION_BYTES <= reserved() < 2 * CONNECTION_BYTES
            connection.request("POST", "/v2/models/none/infer", bytes(3 * CONNECTION_BYTES))
            assert connection.getresponse().read()
            assert reserved() >= CONNECTION_BYTES + BUFFERS * RECORD_BYTES  # of the records that came at once
        until(lambda: reserved() < CONNECTION_BYTES)


@contextmanager
def standing_still(service: ServerProcess) -> Iterator[None]:
    """No process of the service runs."""
    pids = {service.process.pid, *service.workers()}
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def asking(service: ServerProcess, count: int, stack: ExitStack) -> list[Connection]:
    """So many new connections, each with a request."""
    connections = [stack.enter_context(closing(Connection(service.port))) for _ in range(count)]
    for connection in connections:
        connection.request("GET", "/v2/health/live")
    return connections


def assert_live(connection: Connection) -> None:
    """The answer to a request that was sent."""
    assert connection.getresponse().read() == b'{"live":true}'
