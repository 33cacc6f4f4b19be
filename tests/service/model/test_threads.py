"""Long runs use more threads, short ones one; both give the same numbers."""

import asyncio
import shutil

import numpy as np
import pytest

from service.engine.run import run_alone
from service.model.graph import MIN_PARALLEL_NS
from service.model.loader import open_version
from service.ort.provider import Provider
from tests.support.engine import SELF, Gate, open_engine, run_behind, simple
from tests.support.waiting import until_async

SIZE = 1000


@pytest.fixture
def model(repository, tmp_path):
    shutil.copytree(repository / SELF / "1", tmp_path / SELF / "1")
    return open_version(tmp_path / SELF / "1", Provider("cpu", "requested"), 2)


def threads(graph):
    return graph.session.onnx.get_session_options().intra_op_num_threads


def learn(graph, size, times):
    """From now on, runs of this size are expected to take so many times as long as several threads are for."""
    for _ in range(200):
        graph.cost.learn(size, times * MIN_PARALLEL_NS)


def test_by_what_a_run_is_known_to_take(model):
    graph = model.graphs[0]
    assert threads(graph.for_size(SIZE)) == 1  # nothing is known
    graph.cost.learn(SIZE, MIN_PARALLEL_NS / 2)
    assert threads(graph.for_size(SIZE)) == 1
    learn(graph, SIZE, 2)
    parallel = graph.for_size(SIZE)
    assert threads(parallel) == 2
    assert graph.for_size(SIZE) is parallel  # opened once


def test_the_same_numbers(model):
    task = simple(model, 128)
    expected = run_alone(task)
    learn(task.graph, task.size, 100)
    assert threads(task.graph.for_size(task.size)) == 2
    for output, array in run_alone(simple(model, 128)).items():
        np.testing.assert_allclose(array, expected[output], rtol=1e-5, atol=1e-6)


def test_a_file_that_is_gone_ends_nothing(model, tmp_path):
    graph = model.graphs[0]
    learn(graph, SIZE, 100)
    shutil.rmtree(tmp_path / SELF)
    assert threads(graph.for_size(SIZE)) == 1


def test_one_thread_is_all_there_is(repository):
    graph = open_version(repository / "dot_product" / "1", Provider("cpu", "requested"), 1).graphs[0]
    learn(graph, SIZE, 100)
    assert graph.for_size(SIZE) is graph


def learned(model, times):
    tasks = [simple(model, seed=seed) for seed in range(3)]
    learn(tasks[0].graph, tasks[0].size, times)
    return tasks


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("times", [12, 100], ids=["in the lane of short runs", "in that of long ones"])
@pytest.mark.parametrize(
    ("settings", "parallel"),
    [
        ({"intra_op_threads": 2}, [True, False, True]),
        ({"intra_op_threads": 4}, [True, True, True]),  # enough for two runs of several
        ({"intra_op_threads": 4, "workers": 2}, [True, False, True]),  # not for four
    ],
)
async def test_runs_at_one_time_have_a_thread_each(model, monkeypatch, times, settings, parallel):
    first, second, third = learned(model, times)
    gate = Gate(model, monkeypatch)
    async with open_engine(max_concurrent_runs=2, **settings) as engine:
        async with gate.shut(engine, first):
            await until_async(lambda: len(gate.graphs) == 1)
            beside = asyncio.create_task(engine.run(second))
            await until_async(lambda: len(gate.graphs) == 2)
        await beside
        await engine.run(third)
    assert [threads(graph) == 2 for graph in gate.graphs] == parallel


@pytest.mark.parametrize(("workers", "parallel"), [(1, [True, True]), (2, [False, True])])
def test_a_run_with_others_behind_it(model, monkeypatch, workers, parallel):
    """Where one run is made at a time, it may have all CPUs, unless other workers need them as well."""
    first, *others = learned(model, 12)
    gate = Gate(model, monkeypatch)
    run_behind(gate, first, others, intra_op_threads=2, workers=workers)
    assert [threads(graph) == 2 for graph in gate.graphs[1:]] == parallel
