"""How a process of the service accepts connections."""

import os
import signal
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from selectors import EVENT_READ, DefaultSelector

import pytest

from tests.support.http_client import Connection
from tests.support.server import ServerProcess, started
from tests.support.waiting import until

CONNECTIONS = 256
BACKLOG = 1500
MAX_ANSWERS = 32  # to one connection, before all have one


@pytest.mark.parametrize("workers", [1, 2])
def test_new_connections_do_not_wait_behind_the_requests_of_others(models, tmp_path, workers):
    """All are opened while the server stands still. If it accepts one in each turn, the first gets far more answers."""
    answers: Counter[Connection] = Counter()
    with started(models, tmp_path / "log", "--workers", str(workers)) as service, ExitStack() as stack:
        selector = stack.enter_context(DefaultSelector())
        with standing_still(service):
            for connection in asking(service, CONNECTIONS, stack):
                selector.register(connection.sock, EVENT_READ, connection)
        while len(answers) < CONNECTIONS:
            for key, _ in selector.select(timeout=60):
                connection = key.data
                response = connection.getresponse()
                assert response.read()
                assert response.status == 200
                answers[connection] += 1
                connection.request("GET", "/v2/health/live")
    assert max(answers.values()) < MAX_ANSWERS


def test_more_connections_than_descriptors_wait(models, tmp_path):
    """They are answered when others go; nobody is turned away."""
    with started(models, tmp_path / "log", descriptors=100) as service, ExitStack() as stack:
        connections = asking(service, 120, stack)
        until(lambda: "cannot accept connections" in service.log.read_text())
        for connection in connections:
            assert connection.getresponse().read() == b'{"live":true}'
            connection.close()


def test_who_waits_for_a_descriptor_is_answered_at_the_end(models, tmp_path):
    with started(models, tmp_path / "log", descriptors=100) as service, ExitStack() as stack:
        for _ in range(120):
            stack.enter_context(closing(Connection(service.port)))
        until(lambda: "cannot accept connections" in service.log.read_text())
        waiting = asking(service, 40, stack)
        service.process.terminate()
        for connection in waiting:
            assert connection.getresponse().read() == b'{"live":true}'
        assert service.ended() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_who_waits_to_be_accepted_is_answered_at_the_end(models, tmp_path, workers):
    """More connections than fit into the workers' channels."""
    with started(models, tmp_path / "log", "--workers", str(workers)) as service, ExitStack() as stack:
        with standing_still(service):
            waiting = asking(service, BACKLOG, stack)
            service.process.terminate()
        for connection in waiting:
            assert connection.getresponse().read() == b'{"live":true}'
        assert service.ended() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_an_idle_tls_client_does_not_delay_the_end(models, tmp_path, certificate, workers):
    """It does not answer the end of its connection, as it reads nothing."""
    tls = "--tls-certificate", certificate / "certificate", "--tls-key", certificate / "key"
    trust = ssl.create_default_context(cafile=certificate / "certificate")
    with (
        started(models, tmp_path / "log", "--workers", str(workers), *map(str, tls), trust=trust) as service,
        closing(service.connect()) as connection,
    ):
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().read() == b'{"live":true}'
        service.process.terminate()
        assert service.ended() == 0
        assert "shutdown exceeded" not in service.log.read_text()


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
