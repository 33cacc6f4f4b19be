"""Requests that fail are run, counted and logged once, with the answer of the ordinary way."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from service.http import routing
from service.model.graph import Graph
from service.model.model import Model
from tests.support.http_requests import ADDER, SDPA, add, add_binary, attend, http
from tests.support.v2 import tensor


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """The models that are run, one after another; a run of inputs with a 66 ends in an error that nobody expects."""
    names: list[str] = []
    run = Model.run

    def counted(model: Model, graph: Graph, inputs: dict[str, np.ndarray], *more: Any) -> dict[str, np.ndarray]:
        names.append(model.name)
        if any((array == 66).any() for array in inputs.values()):
            raise ValueError("secret")
        return run(model, graph, inputs, *more)

    monkeypatch.setattr(Model, "run", counted)
    return names


def lookup(number: int) -> bytes:
    return http({"inputs": [tensor("ids", [[number]], "INT64")]}, "/v2/models/lookup/infer")


def sums(x: float) -> bytes:
    return http({"inputs": [tensor(name, [[x] * 3]) for name in "xz"], "outputs": [{"name": "y"}]})


def scores(x: float) -> bytes:
    return http({**attend(x), "key": [[x]], "outputs": ["scores"]}, SDPA)


FAILURES = {  # a request that is answered at once, one that fails, with which status, and what it runs
    "a run": (lookup(1), lookup(7), 400, ["lookup"]),
    "a run, unexpectedly": (sums(1.5), sums(66), 500, ["adder"]),
    "a run, unexpectedly, in binary": (add_binary(1.5), add_binary(66), 500, ["adder"]),
    "a run, unexpectedly, natively": (scores(1.5), scores(66), 500, ["scaled_dot_product"]),
    "numbers that overflow": (sums(1.5), sums(3e38), 400, ["adder"]),
    "numbers that overflow natively": (scores(1.5), scores(3e38), 422, ["scaled_dot_product"]),
    "a wrong tensor": (scores(1.5), http({**attend(1.5), "key": [[1, 2]]}, SDPA), 422, []),
    "no JSON": (scores(1.5), http(b"{" * 60, SDPA), 400, []),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_is_not_run_again(name, service, client, other, runs, caplog):
    """What is answered, counted and logged is what the ordinary way answers, counts and logs."""
    good, bad, status, run = FAILURES[name]
    counts = service.server.config.app.counts
    client.learn(good)

    def failures() -> list[int]:
        models = json.loads(other.ask(http(b"", "/v2/models/stats", method="GET")).body)["model_stats"]
        return [model["inference_stats"]["fail"]["count"] for model in models]

    outcomes = []
    for ask in (client.ask_quick, other.ask_ordinary):
        failed, counted = failures(), Counter(counts.failed)
        runs.clear()
        caplog.clear()
        answer = ask(bad)
        assert runs == run
        assert b"secret" not in answer.body
        logged = [record.getMessage().replace(answer.fields["x-request-id"], "ID") for record in caplog.records]
        more = [now - before for now, before in zip(failures(), failed, strict=True)]
        outcomes.append((answer.alike, answer.fields.keys(), more, counts.failed - counted, logged))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0][0] == status
    assert outcomes[0][3].total() == sum(more) == 1
    assert ("request ID failed" in logged) == (status == 500)
    assert client.ask(good).status == 200


def test_an_answer_that_is_to_be_compressed_is_not_run_again(client, runs):
    rows = np.ones((100, 3))
    request = http({"inputs": [tensor("x", rows), tensor("z", rows)]}, ADDER, "Accept-Encoding: gzip")
    for _ in range(3 * routing.SKIP_AFTER_MISS):
        runs.clear()
        assert client.ask(request).fields["content-encoding"] == "gzip"
        assert runs == ["adder"]


def test_a_deadline_is_held(client):
    late = http(add(1.5, parameters={"timeout": 1}))
    assert [client.ask(late).status for _ in range(3)] == [504] * 3
