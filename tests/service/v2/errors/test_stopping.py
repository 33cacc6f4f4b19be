"""A server that is told to end: what comes is answered for a moment, what runs too long is told so."""

import json
import threading
from contextlib import closing

import pytest

from tests.support import graphs
from tests.support.http_client import ADD, ADDED, Connection, rows_of_512
from tests.support.server import started
from tests.support.waiting import until

pytestmark = pytest.mark.extended  # a server process for each test, which takes seconds to end
LONG = rows_of_512(1000)


@pytest.fixture
def service(tmp_path):
    graphs.adder(tmp_path / "models" / "adder" / "1")
    graphs.slow(tmp_path / "models" / "slow" / "1", 4000)  # many times longer than the server has
    flags = ("--workers", "1", "--intra-op-threads", "1", "--max-concurrent-runs", "1", "--shutdown-seconds", "4")
    with started(tmp_path / "models", tmp_path / "log", *flags, linger_s=10) as service:
        yield service


def last_answer(probe: Connection) -> tuple[int, bytes] | None:
    """Of /v2/health/ready, once it announces that the connection is closed."""
    probe.request("GET", "/v2/health/ready")
    response = probe.getresponse()
    answer = response.status, response.read()
    return answer if response.will_close else None


def test_every_request_is_told(service):
    answers = []

    def ask():
        with closing(Connection(service.port)) as own:
            own.request("POST", "/v2/models/slow/infer", LONG)
            response = own.getresponse()
            answers.append((response.status, response.getheader("retry-after"), json.loads(response.read())))

    long = [threading.Thread(target=ask) for _ in range(2)]  # one runs, one is queued
    with closing(Connection(service.port)) as probe, closing(Connection(service.port)) as client:
        assert probe.ask("/v2/health/ready") == b'{"ready":true}'
        client.add()
        for thread in long:
            thread.start()
        until(lambda: service.gauge("runs_in_progress") == service.gauge("requests_queued") == 1)
        service.process.terminate()
        assert until(lambda: last_answer(probe)) == (503, b'{"ready":false}')
        assert json.loads(client.ask("/v2/models/adder/infer", ADD))["outputs"][0]["data"] == ADDED
        assert client.closing
    for thread in long:
        thread.join()
    stopping = {"error": "Server is stopping: this request was not finished in time"}
    assert answers == [(503, "1", stopping)] * 2
    with pytest.raises(ConnectionRefusedError):
        Connection(service.port)
    assert service.ended() == 0  # the run that was cut off has ended, too
    assert "Traceback" not in service.log.read_text()


def test_an_idle_connection_is_closed(service):
    with closing(Connection(service.port)) as idle:
        idle.add()
        service.process.terminate()
        until(lambda: idle.sock.recv(1) == b"")
    assert service.ended() == 0
