"""Triton's schedule_policy: priority and timeout, where the only thread computes and others wait for it."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.engine import Gate
from tests.support.http_client import Connection, gauge
from tests.support.in_process import serving_in_process
from tests.support.v2 import tensor
from tests.support.waiting import until

QUEUE = 4
INFER = "/v2/models/adder/infer"


def send(port: int, number: float, **parameters) -> Connection:
    """A connection with a request of this number on its way."""
    body = {"inputs": [tensor(name, [[number] * 3]) for name in ("x", "z")], "parameters": parameters}
    connection = Connection(port)
    connection.request("POST", INFER, json.dumps(body))
    return connection


def answer(connection: Connection) -> tuple[int, dict, dict]:
    with closing(connection):
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), json.loads(response.read())


class Busy:
    """A server whose only thread is in a run until ``finish``."""

    def __init__(self, port: int, gate: Gate) -> None:
        self.port, self.gate = port, gate
        self.waiting: list[Connection] = []

    def queue(self, number: float, **parameters) -> None:
        self.waiting.append(send(self.port, number, **parameters))
        until(lambda: gauge(self.port, "requests_queued") == len(self.waiting))

    def finish(self) -> list[float]:
        """The numbers in the order of their runs, all of which were answered."""
        self.gate.open.set()
        assert [answer(connection)[0] for connection in self.waiting] == [200] * len(self.waiting)
        return [inputs["x"][0, 0] for inputs in self.gate.ran]

    def failed(self) -> int:
        with closing(Connection(self.port)) as connection:
            (of_model,) = json.loads(connection.ask("/v2/models/adder/stats"))["model_stats"]
        return of_model["inference_stats"]["fail"]["count"]


@pytest.fixture
def busy(adder, monkeypatch) -> Iterator[Busy]:
    settings = {"max_concurrent_runs": 1, "inline_microseconds": 0, "max_queue": QUEUE, "allow_timeout_override": True}
    with serving_in_process(adder, **settings) as service:
        assert answer(send(service.port, 0))[0] == 200  # what never ran has a lane of its own
        gate = Gate(service.server._repository.model("adder"), monkeypatch)
        first = send(service.port, 0)
        until(lambda: gate.ran)
        try:
            yield Busy(service.port, gate)
        finally:
            gate.open.set()
        assert answer(first)[0] == 200


def test_the_urgent_overtake(busy):
    for number, parameters in enumerate(({}, {"priority": 200}, {"priority": 100}, {"priority": 1}), 1):
        busy.queue(number, **parameters)
    assert busy.finish() == [0, 4, 1, 3, 2]


def test_504_while_it_is_queued_counts_as_failed(busy):
    busy.queue(1, timeout=60_000_000)
    status, _, body = answer(send(busy.port, 2, timeout=100_000))
    assert (status, busy.failed()) == (504, 1)
    assert "Request timeout expired: it waited " in body["error"]
    assert "microseconds in the queue" in body["error"]
    assert busy.finish() == [0, 1]


def test_503_when_the_queue_is_full(busy):
    for number in range(QUEUE):
        busy.queue(number)
    status, headers, body = answer(send(busy.port, 9, priority=1))
    assert (status, busy.failed()) == (503, 1)
    assert f"{QUEUE} requests wait, the most there may (max_queue)" in body["error"]
    assert int(headers["retry-after"]) >= 1
    assert busy.finish() == [0, *range(QUEUE)]
