"""Triton's schedule_policy: priority and timeout, where the only thread computes and others wait for it."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tests.support.engine import Gate
from tests.support.http_client import gauge
from tests.support.in_process import serving_in_process
from tests.support.v2 import ADD, error, infer, tensor
from tests.support.waiting import until

QUEUE = 4


class Busy:
    """A server whose only thread is in a run until ``finish``."""

    def __init__(self, client: httpx.Client, gate: Gate, threads: ThreadPoolExecutor) -> None:
        self.client, self.gate, self.threads = client, gate, threads
        self.first = self.send(0)
        self.waiting: list[Future[httpx.Response]] = []
        until(lambda: gate.ran)

    def send(self, number: float, **parameters) -> Future[httpx.Response]:
        inputs = [tensor(name, [[number] * 3]) for name in ("x", "z")]
        return self.threads.submit(infer, self.client, "adder", {"inputs": inputs, "parameters": parameters})

    def queue(self, number: float, **parameters) -> None:
        self.waiting.append(self.send(number, **parameters))
        until(lambda: gauge(self.client.base_url.port, "requests_queued") == len(self.waiting))

    def finish(self) -> list[float]:
        """The numbers in the order of their runs, all of which were answered."""
        self.gate.open.set()
        assert [answer.result().status_code for answer in (self.first, *self.waiting)] == [200] * len(self.gate.ran)
        return [inputs["x"][0, 0] for inputs in self.gate.ran]

    def failed(self) -> int:
        (of_model,) = self.client.get("/v2/models/adder/stats").json()["model_stats"]
        return of_model["inference_stats"]["fail"]["count"]


@pytest.fixture
def busy(adder, monkeypatch) -> Iterator[Busy]:
    settings = {"max_concurrent_runs": 1, "inline_ns": 0, "max_queue": QUEUE, "allow_timeout_override": True}
    with (
        serving_in_process(adder, **settings) as service,
        httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client,
        ThreadPoolExecutor(2 + QUEUE) as threads,
    ):
        assert infer(client, "adder", ADD).status_code == 200  # what never ran has a lane of its own
        gate = Gate(service.server._repository.model("adder"), monkeypatch)
        try:
            yield Busy(client, gate, threads)
        finally:
            gate.open.set()


def test_the_urgent_overtake(busy):
    for number, parameters in enumerate(({}, {"priority": 200}, {"priority": 100}, {"priority": 1}), 1):
        busy.queue(number, **parameters)
    assert busy.finish() == [0, 4, 1, 3, 2]


def test_504_while_it_is_queued_counts_as_failed(busy):
    busy.queue(1, timeout=60_000_000)
    error(
        busy.send(2, timeout=100_000).result(),
        504,
        "Request timeout expired: the request waited ",
        "µs in the queue",
    )
    assert busy.failed() == 1
    assert busy.finish() == [0, 1]


def test_503_when_the_queue_is_full(busy):
    for number in range(QUEUE):
        busy.queue(number)
    refused = busy.send(9, priority=1).result()
    error(refused, 503, f"the queue is full (max_queue: {QUEUE})")
    assert int(refused.headers["retry-after"]) >= 1
    assert busy.failed() == 1
    assert busy.finish() == [0, *range(QUEUE)]
