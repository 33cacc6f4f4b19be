"""Statistics: both APIs count, each version for itself, all workers together, and nothing goes down or without end."""

import json
from contextlib import ExitStack

import numpy as np
import pytest

from service.base.timing import STAGES, Timing
from service.telemetry.counters import MAX_BATCH_SIZES, RequestCounters
from service.telemetry.families import add
from service.telemetry.statistics import Tally, counters, statistics
from tests.support.attending import post
from tests.support.http_client import open_connections
from tests.support.v2 import ADD, infer, tensor

DURATIONS = {"success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss"}
STEPS = ("queue", "compute_input", "compute_infer", "compute_output")


def count(server, model):
    return server.get(f"/v2/models/{model}/stats").json()["model_stats"][0]


def ask_native(server, model, shape, *names):
    return post(server, model, dict.fromkeys(names, np.ones(shape, np.float32)))


def ask_v2(server, model, shape, *names):
    datatype = "INT32" if model == "simple" else "FP32"
    return infer(server, model, {"inputs": [tensor(name, np.ones(shape), datatype) for name in names]})


@pytest.mark.parametrize(
    ("ask", "model", "shape", "names"),
    [
        (ask_native, "dot_product", (1, 2, 2), ("query", "key", "value")),
        (ask_v2, "dot_product", (1, 2, 2), ("query", "key", "value")),
        (ask_v2, "simple", (16,), ("INPUT0", "INPUT1")),
    ],
)
def test_each_api_counts(server, ask, model, shape, names):
    assert ask(server, model, (1, *shape), *names).status_code == 200
    before = count(server, model)
    assert ask(server, model, (5, *shape), *names).status_code == 200
    assert ask(server, model, (5, *shape), names[0]).status_code in (400, 422)
    after = count(server, model)
    assert after["inference_count"] - before["inference_count"] == 5
    assert after["execution_count"] - before["execution_count"] == 1
    assert after["last_inference"] >= before["last_inference"] > 1_700_000_000_000
    spent, spent_before = after["inference_stats"], before["inference_stats"]
    more = {name: spent[name]["count"] - spent_before[name]["count"] for name in spent}
    assert more == dict.fromkeys(DURATIONS, 1) | {"cache_hit": 0, "cache_miss": 0}
    assert 0 < spent["compute_infer"]["ns"] < sum(spent[step]["ns"] for step in STEPS) <= spent["success"]["ns"]
    (of_five,) = [of for of in after["batch_stats"] if of["batch_size"] == 5]
    assert of_five["compute_infer"]["count"] >= 1


def test_versions_are_apart(server):
    def counts():
        stats = server.get("/v2/models/adder/stats").json()["model_stats"]
        return {of["version"]: of["inference_count"] for of in stats}

    before = counts()
    assert infer(server, "adder", ADD, 1).status_code == 200
    after = counts()
    assert {version: after[version] - before[version] for version in after} == {"1": 1, "2": 0}


def test_a_model_that_is_loaded_anew_goes_on(server):
    """As the metrics do: a client that takes a difference over a load must not get a negative one."""
    assert infer(server, "product", {}).status_code == 400
    before = count(server, "product")["inference_stats"]["fail"]
    assert before["count"] > 0
    assert server.post("/v2/repository/models/product/load").status_code == 200
    assert count(server, "product")["inference_stats"]["fail"] == before


@pytest.mark.extended  # two processes
def test_every_worker_tells_of_all(two):
    """At once: the last answers are counted, whichever worker gave them."""
    with ExitStack() as stack:
        connections = open_connections(two, 20, stack)
        for connection in connections:
            for _ in range(4):
                connection.add()
        assert two.spread() == [10, 10]
        for connection in connections:
            (of_model,) = json.loads(connection.ask("/v2/models/adder/stats"))["model_stats"]
            assert (of_model["inference_count"], of_model["execution_count"]) == (100, 100)
            assert {of_model["inference_stats"][step]["count"] for step in STEPS} == {100}
            assert [(of["batch_size"], of["compute_infer"]["count"]) for of in of_model["batch_stats"]] == [(1, 100)]
            of_all = json.loads(connection.ask("/v2/models/stats"))["model_stats"]
            assert {of["name"]: of["inference_count"] for of in of_all} == {"adder": 100, "slow": 0}


def timing(**spent):
    made = Timing()
    made.spent_ns.update(spent)
    return made


def test_several_processes_become_one():
    version = ("m", 1)
    one, other = RequestCounters(), RequestCounters()
    for counts, api, rows, run_rows in ((one, "native", 2, 5), (one, "v2", 3, None), (other, "v2", 4, 4)):
        counts.observe(version, api, timing(**dict.fromkeys(STAGES, 10)), rows, run_rows)
    other.observe(("m", 2), "v2", timing(compute=1))
    other.observe_failure(version, "v2", 500, taken=7)
    other.observe_failure(version, "native", 500, taken=8)
    together = add(counters(one), counters(other))
    first, second, third = statistics(together, [version, ("m", 2), ("never", 1)])
    assert (first.inferences, first.executions, first.success.count, first.fail) == (9, 2, 3, Tally(2, 15))
    assert first.stages == dict.fromkeys(STAGES, Tally(3, 30))
    assert first.batches == {rows: dict.fromkeys(STAGES, Tally(1, 10)) for rows in (4, 5)}
    assert first.last_inference == other.answered[version, "v2"].last // 1_000_000 > 0
    assert (second.inferences, second.executions, second.stages["compute"]) == (1, 0, Tally(1, 1))
    assert (third.inferences, third.last_inference, third.success) == (0, 0, Tally())


def test_batch_sizes_are_bounded():
    counts, version = RequestCounters(), ("m", 1)
    for rows in range(2 * MAX_BATCH_SIZES):
        counts.observe(version, "v2", timing(compute=1), rows, rows)
    (of_model,) = statistics(add(counters(counts)), [version])
    assert len(of_model.batches) == MAX_BATCH_SIZES
    assert of_model.executions == 2 * MAX_BATCH_SIZES
