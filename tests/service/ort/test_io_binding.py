"""Runs bound to memory, and where nodes run: on the CPU, by the code that a GPU is driven with."""

import asyncio
import gc

import numpy as np
import pytest

from models.catalogue import BLOCKS
from service.engine.engine import RUNS_IN_FLIGHT_PER_GPU, Engine
from service.engine.run import run_alone
from service.model.calibration import calibrate
from service.model.loader import load_version, log_placement, open_version
from service.ort.pinned_memory import MIN_POOLED_BYTES, PinnedPool, plain
from service.ort.placement import format_placement, placement
from service.ort.provider import Provider, open_session
from service.ort.session import BoundSession, Session
from service.settings import Settings
from service.tensors.bfloat16 import BFLOAT16
from tests.support import graphs
from tests.support.tasks import drawn, opened, options_of
from tests.support.waiting import until_async


def bound_model(folder):
    """A model whose runs go the way they go on CUDA."""
    return load_version(folder, Provider("cpu", "asked for", pinned=plain()), 1, 64)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("name", BLOCKS)
def test_a_bound_run_answers_to_the_last_bit(name, repository):
    by_session, bound = opened(repository / name / "1"), bound_model(repository / name / "1")
    assert {type(graph.session) for graph in bound.graphs} == {BoundSession}
    assert {type(graph.session) for graph in by_session.graphs} == {Session}
    names = [[graph.spec and graph.spec.fast_path for graph in model.graphs] for model in (by_session, bound)]
    assert names[0] == names[1]
    for seed, option in enumerate(options_of(name)):
        work = drawn(by_session, 7, 9, 2, option, seed)
        for graph, other in zip(by_session.graphs, bound.graphs, strict=True):
            outputs = sorted(graph.outputs)
            if graph.can_serve(work.inputs, outputs, 10**9):
                same(bound.run(other, work.inputs, outputs), by_session.run(graph, work.inputs, outputs))
        same(run_alone(drawn(bound, 7, 9, 2, option, seed)), run_alone(work))


def test_inputs_of_any_layout(repository):
    by_session = opened(repository / "scaled_dot_product" / "1")
    bound = bound_model(repository / "scaled_dot_product" / "1")
    work = drawn(by_session, 5, 6, 2, "plain", 0)
    outputs, graph = ["output", "weights"], bound.graphs[-1]
    across = {name: np.asfortranarray(array) for name, array in work.inputs.items()}
    frozen = {name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for name, array in across.items()}
    expected = by_session.run(by_session.graphs[-1], work.inputs, outputs)
    for inputs in (across, frozen):
        same(bound.run(graph, inputs, outputs), expected)


def test_bfloat16_passes_as_it_is(tmp_path):
    graphs.identity(tmp_path / "same" / "1", "BF16")
    model = open_version(tmp_path / "same" / "1", Provider("cpu", "asked for"), 1)
    given = np.arange(6, dtype=np.uint16).view(BFLOAT16).reshape(2, 3)
    same(model.run(model.graphs[0], {"x": given}, ["y"]), {"y": given})


class Pins:
    """Counts what is pinned, in place of CUDA."""

    def __init__(self):
        self.pinned = {}

    def pin(self, address, size):
        assert address % 4096 == 0
        assert address not in self.pinned
        self.pinned[address] = size

    def unpin(self, address):
        del self.pinned[address]


def test_memory_is_lent_and_comes_back():
    pins = Pins()
    memory = PinnedPool(pins.pin, pins.unpin, max_idle_bytes=4 * MIN_POOLED_BYTES)
    small = memory.empty((MIN_POOLED_BYTES // 4 - 1,), np.dtype(np.float32))
    assert not pins.pinned  # too short to gain by it
    first = memory.empty((MIN_POOLED_BYTES // 4, 1), np.dtype(np.float32))
    first[:] = 7
    place = first.ctypes.data
    assert list(pins.pinned) == [place]
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
    assert sum(pins.pinned.values()) == (1 + 1 + 3 * 4) * MIN_POOLED_BYTES
    several.clear()
    assert memory.idle <= 4 * MIN_POOLED_BYTES  # what is more is given back
    assert sum(pins.pinned.values()) == memory.idle + MIN_POOLED_BYTES
    del others, small


def test_where_nodes_run_is_told(repository, client, monkeypatch, caplog):
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

    def on_cpu(file, _provider, threads, prepack=True):
        return open_session(file, Provider("cpu", "asked for"), threads, prepack)

    monkeypatch.setattr("service.model.loader.open_session", on_cpu)
    log_placement(open_version(repository / "scaled_dot_product" / "1", Provider("cuda", "asked for"), 1))
    assert "scaled_dot_product, plain: CUDA has not taken 2 MatMul, 1 Softmax, which run on the CPU" in caplog.text


@pytest.mark.parametrize("name", ["linear", "decoder"])
def test_a_large_run_is_timed_where_small_ones_say_nothing(name, repository):
    model = opened(repository / name / "1")
    work = drawn(model, 400, 400, 8, "plain", 0, ["output"])
    near = work.size.bit_length() - 3
    assert all(max(graph.cost._rates) < near for graph in model.graphs)
    model.is_on_cuda = True
    calibrate(model)
    assert all(max(graph.cost._rates) >= near for graph in model.graphs)


def test_threads_as_they_suit_a_gpu(repository):
    """Few runs at one time on a GPU, and works share one wherever that saves what the least of runs takes."""
    model = opened(repository / "multi_head_self_attention" / "1")

    async def alive():
        made = Engine(Settings(max_concurrent_runs=8).sized())
        for on_gpu in (True, False, True):
            made.fit(RUNS_IN_FLIGHT_PER_GPU if on_gpu else 8, on_gpu)
            expected = 2 * (RUNS_IN_FLIGHT_PER_GPU if on_gpu else 8)
            await until_async(lambda expected=expected: sum(one.is_alive() for one in made._threads) == expected)
            works = [drawn(model, 4, 4, 1, "plain", seed, ["output"]) for seed in range(20)]
            found = await asyncio.gather(*map(made.run, works))
            for answer, work in zip(found, works, strict=True):
                same(answer, run_alone(work))
        least = min(work.graph.cost.expected(0) for work in works)
        assert made._saved_ns(works[0].graph) == made._hop_ns + least
        made.fit(8)
        assert made._saved_ns(works[0].graph) == made._hop_ns
        made.close()
        assert not any(thread.is_alive() for thread in made._threads)

    asyncio.run(alive())
