"""What may wait, how long, and for whom: deadlines, a full queue, clients that hang up."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from service.errors import Malformed
from service.http.envelope import deadline
from tests.support import graphs
from tests.support.http_client import SLOW, Connection, rows_of_512
from tests.support.server import ServerProcess, serving, started
from tests.support.waiting import until

INFER = "/v2/models/slow/infer"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    graphs.slow(folder / "slow" / "1", 1000)
    return folder


def timed(service: ServerProcess) -> float:
    """Seconds that a request takes."""
    start = time.monotonic()
    assert asked(service.port, {})[0] == 200
    return time.monotonic() - start


@contextmanager
def busy(service: ServerProcess) -> Iterator[None]:
    """A run takes all there is to run on; it ends within the block, or with it."""
    with closing(Connection(service.port)) as connection:
        connection.request("POST", INFER, rows_of_512(256), {"X-Request-Timeout": "300"})
        until(lambda: service.gauge("runs_in_progress") == 1)
        yield
        assert connection.getresponse().status == 200


def asked(port: int, headers: dict[str, str], body: str = SLOW):
    with closing(Connection(port)) as connection:
        connection.request("POST", INFER, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, json.loads(response.read())


def statistics(port: int) -> tuple[int, int]:
    """Requests to the slow model that were answered, and that failed."""
    with closing(Connection(port)) as connection:
        said = json.loads(connection.ask("/v2/models/slow/stats"))["model_stats"][0]["inference_stats"]
    return said["success"]["count"], said["fail"]["count"]


@pytest.mark.parametrize("headers", [{"X-Request-Timeout": "0.05"}, {"x-envoy-expected-rq-timeout-ms": "50"}])
def test_504_past_the_deadline_of_a_header(models, tmp_path, headers):
    with started(models, tmp_path / "log", "--workers", "1", "--max-concurrent-runs", "1") as service, busy(service):
        status, found, body = asked(service.port, headers)
        assert service.gauge("runs_in_progress") == 1  # it did not wait for that run
        assert (status, found["Retry-After"]) == (504, "1")
        assert "Request timeout expired" in body["error"]
        assert asked(service.port, dict.fromkeys(headers, "300000"))[0] == 200


def test_504_past_the_deadline_of_the_setting(models, tmp_path):
    flags = ["--workers", "1", "--max-concurrent-runs", "1", "--deadline-seconds", "0.05", "--allow-timeout-override"]
    with started(models, tmp_path / "log", *flags) as service, busy(service):
        assert asked(service.port, {})[0] == 504
        assert asked(service.port, {"X-Request-Timeout": "300"})[0] == 200
        longer = json.dumps({**json.loads(SLOW), "parameters": {"timeout": 300_000_000}})
        assert asked(service.port, {}, body=longer)[0] == 200


def test_504_of_the_native_face(two_blocks):
    """A deadline that is past when the run would begin, without anything to wait for."""
    body = {"query": [[1.0]], "key": [[1.0]], "value": [[1.0]]}
    with serving(two_blocks, "--deadline-seconds", "0.000001") as client:
        late = client.post("/v1/attention/scaled_dot_product", json=body)
        assert (late.status_code, late.json()["title"]) == (504, "Gateway Timeout")
        said = client.post("/v1/attention/scaled_dot_product", json=body, headers={"X-Request-Timeout": "9"})
        assert said.status_code == 200
        wrong = client.post("/v1/attention/scaled_dot_product", json=body, headers={"X-Request-Timeout": "soon"})
        assert (wrong.status_code, "x-request-timeout" in wrong.json()["detail"]) == (400, True)


def test_the_shortest_deadline_counts():
    headers = {b"x-request-timeout": b"0.5", b"x-envoy-expected-rq-timeout-ms": b"700"}
    assert deadline(5, headers, 60) == 5 + 500_000_000
    assert deadline(5, headers, 60, 200_000) == 5 + 200_000_000
    assert deadline(5, {}, 60) == 5 + 60 * 10**9
    assert deadline(5, {}, 60, 90_000_000) == 5 + 90 * 10**9
    assert deadline(5, {}, 0) is None


@pytest.mark.parametrize("value", [b"", b"-1", b"1e3", b"nan", b"1_000", b"9" * 99, b" 1", "١".encode()])
def test_a_deadline_is_a_number(value):
    with pytest.raises(Malformed, match="x-request-timeout to be a number of seconds"):
        deadline(0, {b"x-request-timeout": value}, 60)


@pytest.mark.parametrize("status", [503, 429])
def test_a_full_queue_refuses_at_once(models, tmp_path, status):
    flags = ["--workers", "1", "--max-concurrent-runs", "1", "--max-queue", "1", "--overload-status", str(status)]
    with (
        started(models, tmp_path / "log", *flags) as service,
        busy(service),
        closing(Connection(service.port)) as waiting,
    ):
        waiting.request("POST", INFER, SLOW)
        until(lambda: service.gauge("requests_queued") == 1)
        answered, headers, body = asked(service.port, {})
        assert service.gauge("requests_queued") == 1  # it did not wait for that one
        assert answered == status
        assert int(headers["Retry-After"]) >= 1
        assert "max_queue" in body["error"]
        assert waiting.getresponse().status == 200


def test_who_would_wait_too_long_is_refused_at_once(models, tmp_path):
    """By what is known of the runs that wait; whoever has time waits."""
    with started(models, tmp_path / "log", "--workers", "1", "--max-concurrent-runs", "1") as service:
        one = min(timed(service) for _ in range(3))  # seconds
        with busy(service), ExitStack() as stack:
            waiting = [stack.enter_context(closing(Connection(service.port))) for _ in range(4)]
            for connection in waiting:
                connection.request("POST", INFER, SLOW)
            until(lambda: service.gauge("requests_queued") == len(waiting))
            status, headers, body = asked(service.port, {"X-Request-Timeout": f"{one:.3f}"})
            assert service.gauge("requests_queued") > 0  # it did not wait for all of them
            assert (status, int(headers["Retry-After"]) >= 1) == (503, True)
            assert "too long to be run before its deadline" in body["error"]
            assert asked(service.port, {"X-Request-Timeout": "300"})[0] == 200
            assert [connection.getresponse().status for connection in waiting] == [200] * 4


def test_the_memory_of_all_requests_is_bounded(models, tmp_path):
    """A body that has no room beside another one is refused, and one that has no room alone."""
    longer = json.dumps({"inputs": [], "x": "y" * 300_000})
    with started(models, tmp_path / "log", "--workers", "1", "--memory-budget-bytes", "800000") as service:
        with closing(Connection(service.port)) as first:
            first.putrequest("POST", INFER)
            first.putheader("Content-Length", str(len(longer)))
            first.endheaders(longer[:-10].encode())
            until(lambda: asked(service.port, {}, body=longer[:150_000])[0] == 503)  # once the first part has come
            status, headers, body = asked(service.port, {}, body=longer[:150_000])
            assert (status, headers["Retry-After"]) == (503, "1")
            assert "the limit is 0.4 MiB (half of memory_budget_bytes)" in body["error"]
            first.send(longer[-10:].encode())
            assert first.getresponse().status == 400
        assert asked(service.port, {}, body=longer[:150_000])[0] == 400
        status, _, body = asked(service.port, {}, body=json.dumps({"inputs": [], "x": "y" * 500_000}))
        assert (status, "needs about" in body["error"]) == (400, True)


def test_who_hangs_up_is_not_worked_for(models, tmp_path):
    """What waited is dropped from the queue; what runs is run to its end, and harms nobody."""
    rows = 1024  # seconds of work
    long = rows_of_512(rows)
    with started(models, tmp_path / "log", "--workers", "1", "--max-concurrent-runs", "1") as service:
        with closing(Connection(service.port)) as first:
            first.request("POST", INFER, long)
            until(lambda: service.gauge("runs_in_progress") == 1)
            with ExitStack() as stack:
                for _ in range(20):
                    stack.enter_context(closing(Connection(service.port))).request("POST", INFER, SLOW)
                until(lambda: service.gauge("requests_queued") == 20)
            until(lambda: statistics(service.port) == (0, 20))  # before the first has its answer
            assert first.getresponse().status == 200
        assert asked(service.port, {})[0] == 200
        assert statistics(service.port) == (2, 20)
        with closing(Connection(service.port)) as runner:
            runner.request("POST", INFER, long)
            until(lambda: service.gauge("runs_in_progress") == 1)
        assert asked(service.port, {})[0] == 200
        assert statistics(service.port)[1] == 21
        assert "Traceback" not in service.log.read_text()
        assert "ERROR" not in service.log.read_text()
