"""How a process of the service accepts connections."""

import os
import signal
from collections import Counter
from contextlib import ExitStack, closing
from selectors import EVENT_READ, DefaultSelector

import pytest

from tests.support.http_client import Connection
from tests.support.server import started
from tests.support.waiting import until

CONNECTIONS = 256
MAX_ANSWERS = 32  # to one connection, before all have one


@pytest.mark.parametrize("workers", [1, 2])
def test_new_connections_do_not_wait_behind_the_requests_of_others(models, tmp_path, workers):
    """All are opened while the server stands still. If it accepts one in each turn, the first gets far more answers."""
    answers: Counter[Connection] = Counter()
    with started(models, tmp_path / "log", "--workers", str(workers)) as service, ExitStack() as stack:
        selector = stack.enter_context(DefaultSelector())
        pids = {service.process.pid, *service.workers()}
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(closing(Connection(service.port)))
            connection.request("GET", "/v2/health/live")
            selector.register(connection.sock, EVENT_READ, connection)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
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
        connections = [stack.enter_context(closing(Connection(service.port))) for _ in range(120)]
        for connection in connections:
            connection.request("GET", "/v2/health/live")
        until(lambda: "cannot accept: " in service.log.read_text())
        for connection in connections:
            assert connection.getresponse().read() == b'{"live":true}'
            connection.close()
