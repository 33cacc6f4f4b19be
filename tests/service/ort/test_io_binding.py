"""Runs bound to memory, and where nodes run: on the CPU, by the code that a GPU is driven with."""

import asyncio
import gc
from dataclasses import replace

import numpy as np
import pytest

from models.catalogue import BLOCKS
from service.base.cost import CostModel
from service.engine.engine import RUNS_IN_FLIGHT_PER_GPU, Engine
from service.engine.run import run_alone
from service.model.calibration import calibrate
from service.model.loader import load_version, log_placement, open_version
from service.ort.pinned_memory import MIN_POOLED_BYTES, PinnedPool, plain
from service.ort.placement import format_placement, placement
from service.ort.provider import Provider
from service.ort.session import BoundSession, Session
from service.settings import Settings
from tests.support.tasks import drawn, open_on_cpu, opened, options_of
from tests.support.waiting import until_async


def bound_model(folder):
    """A model whose runs go the way they go on CUDA."""
    return load_version(folder, Provider("cpu", "requested", pinned=plain()), 1, 64)


def same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert (actual[name].shape, actual[name].dtype) == (array.shape, array.dtype)
        assert actual[name].tobytes() == array.tobytes(), name


FAST = ("scaled_dot_product", "multi_head_self_attention", "encoder")


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.extended) for name in BLOCKS if name not in FAST)]
)
def test_a_bound_run_answers_to_the_last_bit(name, repository):
    by_session, bound = opened(repository / name / "1"), bound_model(repository / name / "1")
    assert {type(graph.session) for graph in bound.graphs} == {BoundSession}
    assert {type(graph.session) for graph in by_session.graphs} == {Session}
    assert [graph.spec for graph in by_session.graphs] == [graph.spec for graph in bound.graphs]
    for seed, option in enumerate(options_of(name)):
        work = drawn(by_session, 7, 9, 2, option, seed)
        across = {
            name: np.array(array, order="F") for name, array in work.inputs.items()
        }  # inputs may have any layout,
        for array in across.values():
            array.flags.writeable = False  # and be parts of what was received
        for graph, other in zip(by_session.graphs, bound.graphs, strict=True):
            outputs = sorted(graph.outputs)
            if graph.can_serve(work.inputs, outputs, 10**9, 10**9):
                same(bound.run(other, across, outputs), by_session.run(graph, work.inputs, outputs))
        same(run_alone(drawn(bound, 7, 9, 2, option, seed)), run_alone(work))


def test_memory_is_lent_and_comes_back():
    pinned = {}

    def pin(address, size):
        assert address % 4096 == 0
        assert address not in pinned
        pinned[address] = size

    memory = PinnedPool(pin, pinned.pop, max_idle_bytes=4 * MIN_POOLED_BYTES)
    small = memory.empty((MIN_POOLED_BYTES // 4 - 1,), np.dtype(np.float32))
    assert not pinned  # too short to gain by it
    first = memory.empty((MIN_POOLED_BYTES // 4, 1), np.dtype(np.float32))
    first[:] = 7
    place = first.ctypes.data
    assert list(pinned) == [place]
    row = first[3:5, 0].reshape(1, 2)
    del first
    gc.collect()
    assert memory.idle == 0  # a view holds it
    others = memory.empty((MIN_POOLED_BYTES,), np.dtype(bool))
    assert others.ctypes.data != place
    assert row.tolist() == [[7, 7]]
    del row
    assert memory.idle == MIN_POOLED_BYTES
    assert memory.empty((MIN_POOLED_BYTES,), np.dtype(np.uint8)).ctypes.data == place
    several = [memory.empty((3 * MIN_POOLED_BYTES,), np.dtype(np.uint8)) for _ in range(3)]  # 4 of each are taken
    assert sum(pinned.values()) == (1 + 1 + 3 * 4) * MIN_POOLED_BYTES
    several.clear()
    assert memory.idle <= 4 * MIN_POOLED_BYTES  # what is more is given back
    assert sum(pinned.values()) == memory.idle + MIN_POOLED_BYTES
    del others, small


def test_where_nodes_run_is_told(repository, client):
    model = opened(repository / "scaled_dot_product" / "1")
    assert model.nodes == {"CPU": sum(nodes.total() for of in model.placement.values() for nodes in of.values())}
    assert placement(model.graphs[-1].session.onnx) == model.placement["model"]
    said = client.get("/v1/attention/scaled_dot_product").json()["nodes"]
    assert said["plain"]["CPU"]["Softmax"] == 1
    assert said.keys() == model.placement.keys()
    properties = client.get("/v2/models/scaled_dot_product").json()["properties"]
    assert f"plain: {format_placement(model.placement['plain'])}" in properties["nodes"]
    assert "2 MatMul, 1 Softmax" in properties["nodes"]
    count = f'heed_model_nodes{{model="scaled_dot_product",provider="CPU"}} {model.nodes["CPU"]:.1f}'
    assert count in client.get("/metrics").text


def test_heavy_nodes_that_cuda_has_not_taken_are_a_warning(repository, monkeypatch, caplog):
    """A provider called cuda whose sessions are all on the CPU."""
    monkeypatch.setattr("service.model.loader.open_session", open_on_cpu)
    log_placement(open_version(repository / "scaled_dot_product" / "1", Provider("cuda", "requested"), 1))
    assert "scaled_dot_product, plain: CUDA does not support 2 MatMul, 1 Softmax, which run on the CPU" in caplog.text


@pytest.mark.parametrize("name", ["linear", pytest.param("decoder", marks=pytest.mark.extended)])
def test_a_large_run_is_timed_on_every_graph_of_a_gpu(name, repository):
    model = opened(repository / name / "1")
    work = drawn(model, 400, 400, 8, "plain", 0, ["output"])
    model = replace(model, graphs=[replace(graph, cost=CostModel()) for graph in model.graphs])
    model.is_on_cuda = True
    calibrate(model)
    assert all(graph.cost.knows(work.size) for graph in model.graphs)


def test_graphs_of_one_tower_are_used_on_a_gpu(towers, caplog):
    """They do not have the output that a large run computes on other graphs."""
    model = opened(towers("clip") / "models" / "mine" / "1")
    model.is_on_cuda = True
    assert {"images", "texts"} <= {graph.spec.fast_path for graph in calibrate(model) if graph.spec}
    assert "is not used" not in caplog.text


def test_threads_as_they_suit_a_gpu(repository):
    """Few runs at one time on a GPU, and works share one wherever that saves what the least of runs takes."""
    model = opened(repository / "multi_head_self_attention" / "1")

    async def alive():
        engine = Engine(Settings(max_concurrent_runs=8).sized())
        for on_gpu in (True, False, True):
            engine.configure_device(RUNS_IN_FLIGHT_PER_GPU if on_gpu else 8, on_gpu)
            expected = 2 * (RUNS_IN_FLIGHT_PER_GPU if on_gpu else 8)
            await until_async(lambda expected=expected: sum(one.is_alive() for one in engine._threads) == expected)
            tasks = [drawn(model, 4, 4, 1, "plain", seed, ["output"]) for seed in range(20)]
            answers = await asyncio.gather(*map(engine.run, tasks))
            for answer, task in zip(answers, tasks, strict=True):
                same(answer, run_alone(task))
        least = min(task.graph.cost.expected(0) for task in tasks)
        assert engine._saved_ns(tasks[0].graph) == engine._hop_ns + least
        engine.configure_device(8)
        assert engine._saved_ns(tasks[0].graph) == engine._hop_ns
        engine.close()
        assert not any(thread.is_alive() for thread in engine._threads)

    asyncio.run(alive())
