"""Which requests wait, and for how long: deadlines, memory, clients that hang up."""

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest

from service.base.cost import CostModel
from service.base.errors import Malformed
from service.http.envelope import deadline
from tests.support.application import running
from tests.support.engine import Gate
from tests.support.http_client import ADD, Connection, gauge
from tests.support.in_process import serving_in_process
from tests.support.waiting import until

INFER = "/v2/models/adder/infer"


@contextmanager
def sent(port: int, headers: dict[str, str], body: str = ADD) -> Iterator[Connection]:
    """A connection with a request on its way."""
    with closing(Connection(port)) as connection:
        connection.request("POST", INFER, body, headers)
        yield connection


def ask(port: int, headers: dict[str, str] | None = None, body: str = ADD) -> httpx.Response:
    return httpx.post(f"http://127.0.0.1:{port}{INFER}", content=body, headers=headers, timeout=60)


@contextmanager
def busy(models, monkeypatch, **settings) -> Iterator[tuple[int, Gate]]:
    """The port of a server whose only thread is in a run that lasts until the gate is opened, or the block ends."""
    with serving_in_process(models, max_concurrent_runs=1, inline_ns=0, **settings) as service:
        assert ask(service.port, {"X-Request-Timeout": "300"}).status_code == 200  # what never ran has its own lane
        model = service.server._repository.model("adder")
        gate = Gate(model, monkeypatch)
        with sent(service.port, {"X-Request-Timeout": "300"}) as connection:
            until(lambda: gate.ran)
            try:
                yield service.port, gate
            finally:
                gate.open.set()
            assert connection.getresponse().status == 200


def test_504_of_the_native_face(two_blocks):
    """A deadline that is past when the run would begin, without anything to wait for."""
    body = {"query": [[1.0]], "key": [[1.0]], "value": [[1.0]]}
    with running(two_blocks, deadline_seconds=0.000001) as client:
        late, in_time = (
            client.post("/v1/attention/scaled_dot_product", json=body, headers=headers)
            for headers in ({}, {"X-Request-Timeout": "300"})
        )
    assert (late.status_code, late.json()["title"]) == (504, "Gateway Timeout")
    assert late.headers["Retry-After"] == "1"
    assert in_time.status_code == 200


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


def test_a_request_that_would_wait_too_long_is_refused_at_once(adder, monkeypatch):
    """By the forecast for the runs that wait, of a second each; those with a later deadline are queued."""
    monkeypatch.setattr(CostModel, "expected", lambda *_: 1e9)
    with busy(adder, monkeypatch) as (port, gate), ExitStack() as stack:
        waiting = [stack.enter_context(sent(port, {"X-Request-Timeout": "300"})) for _ in range(4)]
        until(lambda: gauge(port, "requests_queued") == len(waiting))
        refused = ask(port, {"X-Request-Timeout": "1"})
        assert (refused.status_code, int(refused.headers["Retry-After"]) >= 1) == (503, True)
        assert "too long for its deadline" in refused.json()["error"]
        gate.open.set()
        assert [connection.getresponse().status for connection in waiting] == [200] * len(waiting)


def test_the_memory_of_all_requests_is_bounded(adder):
    """A body that has no room beside another one is refused, and one that has no room alone."""
    longer = json.dumps({"inputs": [], "x": "y" * 300_000})
    with serving_in_process(adder, memory_budget_bytes=800_000) as service:
        with closing(Connection(service.port)) as first:
            first.putrequest("POST", INFER)
            first.putheader("Content-Length", str(len(longer)))
            first.endheaders(longer[:-10].encode())
            until(lambda: ask(service.port, body=longer[:150_000]).status_code == 503)  # once the first part has come
            refused = ask(service.port, body=longer[:150_000])
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert "the limit is 0.4 MiB (half of memory_budget_bytes)" in refused.json()["error"]
            first.send(longer[-10:].encode())
            assert first.getresponse().status == 400
        assert ask(service.port, body=longer[:150_000]).status_code == 400
        alone = ask(service.port, body=json.dumps({"inputs": [], "x": "y" * 500_000}))
        assert (alone.status_code, "needs about" in alone.json()["error"]) == (400, True)


def test_requests_of_clients_that_hang_up_are_dropped(adder, monkeypatch, caplog):
    """Those that wait leave the queue; one that runs counts as failed; the next requests are answered."""
    with busy(adder, monkeypatch) as (port, gate):

        def failed() -> int:
            (statistics,) = httpx.get(f"http://127.0.0.1:{port}/v2/models/adder/stats").json()["model_stats"]
            return statistics["inference_stats"]["fail"]["count"]

        with ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(sent(port, {}))
            until(lambda: gauge(port, "requests_queued") == 20)
        until(lambda: failed() == 20)
        assert gauge(port, "requests_queued") == 0
        assert len(gate.ran) == 1
        gate.open.set()
        assert ask(port).status_code == 200
        gate.open.clear()
        with sent(port, {}):
            until(lambda: len(gate.ran) == 3)
        until(lambda: failed() == 21)
        gate.open.set()
        assert ask(port).status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
