"""A server that is told to end: what comes is answered for a moment, what runs too long is told so."""

import json
from contextlib import closing

import pytest

from tests.support import graphs
from tests.support.http_client import Connection, rows_of_512
from tests.support.server import started
from tests.support.waiting import until

STOPPING = {"error": "Server is stopping: this request was not finished in time"}


def last_answer(probe: Connection) -> tuple[int, bytes] | None:
    """Of /v2/health/ready, once it announces that the connection is closed."""
    probe.request("GET", "/v2/health/ready")
    response = probe.getresponse()
    answer = response.status, response.read()
    return answer if response.will_close else None


@pytest.mark.extended  # a process, whose run takes longer than it has
def test_every_request_is_told(tmp_path):
    graphs.adder(tmp_path / "models" / "adder" / "1")
    graphs.slow(tmp_path / "models" / "slow" / "1", 4000)
    flags = ("--workers", "1", "--intra-op-threads", "1", "--max-concurrent-runs", "1", "--shutdown-seconds", "4")
    with started(tmp_path / "models", tmp_path / "log", *flags, linger_s=10) as service:
        long = [Connection(service.port) for _ in range(2)]  # one runs, one is queued
        with closing(Connection(service.port)) as probe, closing(Connection(service.port)) as client:
            assert probe.ask("/v2/health/ready") == b'{"ready":true}'
            client.add()
            for connection in long:
                connection.request("POST", "/v2/models/slow/infer", rows_of_512(1000))
            until(lambda: service.gauge("runs_in_progress") == service.gauge("requests_queued") == 1)
            service.process.terminate()
            assert until(lambda: last_answer(probe)) == (503, b'{"ready":false}')
            client.add()
            assert client.closing
        for connection in long:
            with closing(connection):
                error = connection.getresponse()
                assert (error.status, error.getheader("retry-after")) == (503, "1")
                assert json.loads(error.read()) == STOPPING
        with pytest.raises(ConnectionRefusedError):
            Connection(service.port)
        assert service.ended() == 0  # the run that was cut off has ended, too
        assert "Traceback" not in service.log.read_text()
