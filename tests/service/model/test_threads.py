"""Long runs use more threads, short ones one; both give the same numbers."""

import asyncio
import shutil

import numpy as np
import pytest

from service.engine.run import run_alone
from service.engine.task import InferenceTask
from service.model.graph import MIN_PARALLEL_NS
from service.model.loader import open_version
from service.ort.provider import Provider
from tests.support.engine import SELF, Gate, engine, simple
from tests.support.waiting import until_async

SIZE = 1000


@pytest.fixture
def model(repository, tmp_path):
    shutil.copytree(repository / SELF / "1", tmp_path / SELF / "1")
    return open_version(tmp_path / SELF / "1", Provider("cpu", "asked for"), 2)


def threads(graph):
    return graph.session.onnx.get_session_options().intra_op_num_threads


def test_by_what_a_run_is_known_to_take(model):
    graph = model.graphs[0]
    assert threads(graph.for_size(SIZE, to_learn=False)) == 1  # nothing is known
    graph.cost.learn(SIZE, MIN_PARALLEL_NS / 2)
    assert threads(graph.for_size(SIZE, to_learn=False)) == 1
    for _ in range(200):
        graph.cost.learn(SIZE, 2 * MIN_PARALLEL_NS)
    wide = graph.for_size(SIZE, to_learn=False)
    assert threads(wide) == 2
    assert graph.for_size(SIZE, to_learn=False) is wide  # opened once
    assert graph.for_size(SIZE, to_learn=True) is graph  # hardly long: one slow moment is not remembered for ever
    for _ in range(200):
        graph.cost.learn(SIZE, 100 * MIN_PARALLEL_NS)
    assert graph.for_size(SIZE, to_learn=True) is wide


def test_the_same_numbers(model):
    (name,) = (name for name, of in model.inputs.items() if of.required)
    depth = model.inputs[name].shape[-1]
    inputs = {name: np.random.default_rng(0).standard_normal((2, 128, int(depth))).astype(np.float32)}
    need = model.estimate(inputs, ["output", "weights"], model.bind(inputs))
    narrow = run_alone(InferenceTask(model, need, inputs, ["output", "weights"]))
    for _ in range(200):
        need.graph.cost.learn(need.size, 100 * MIN_PARALLEL_NS)
    assert threads(need.graph.for_size(need.size, to_learn=False)) == 2
    wide = run_alone(InferenceTask(model, need, inputs, ["output", "weights"]))
    for output, array in narrow.items():
        np.testing.assert_allclose(wide[output], array, rtol=1e-5, atol=1e-6)


def test_a_file_that_is_gone_ends_nothing(model, tmp_path):
    graph = model.graphs[0]
    graph.cost.learn(SIZE, 100 * MIN_PARALLEL_NS)
    shutil.rmtree(tmp_path / SELF)
    assert threads(graph.for_size(SIZE, to_learn=False)) == 1


def test_one_thread_is_all_there_is(repository):
    model = open_version(repository / "dot_product" / "1", Provider("cpu", "asked for"), 1)
    graph = model.graphs[0]
    graph.cost.learn(SIZE, 100 * MIN_PARALLEL_NS)
    assert graph.for_size(SIZE, to_learn=False) is graph


@pytest.mark.parametrize("times", [12, 100])  # in the lane of short runs, and in that of long ones
@pytest.mark.parametrize(
    ("settings", "wide"),
    [
        ({"max_concurrent_runs": 2, "intra_op_threads": 2}, [True, False, True]),
        ({"max_concurrent_runs": 2, "intra_op_threads": 4}, [True, True, True]),  # enough for two runs of several
        ({"max_concurrent_runs": 2, "intra_op_threads": 4, "workers": 2}, [True, False, True]),  # not for four
    ],
)
def test_runs_at_one_time_have_a_thread_each(model, monkeypatch, times, settings, wide):
    works = learned(model, times)
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine(**settings) as made:
            first = asyncio.create_task(made.run(works[0]))
            await until_async(lambda: len(gate.graphs) == 1)
            second = asyncio.create_task(made.run(works[1]))
            await until_async(lambda: len(gate.graphs) == 2)
            gate.open.set()
            await asyncio.gather(first, second)
            await made.run(works[2])

    asyncio.run(go())
    assert [threads(graph) == 2 for graph in gate.graphs] == wide


@pytest.mark.parametrize(("workers", "wide"), [(1, [True, True]), (2, [False, True])])
def test_a_run_with_others_behind_it(model, monkeypatch, workers, wide):
    """Where one run is made at a time, it may have all CPUs, unless other workers need them as well."""
    settings = {"max_concurrent_runs": 1, "intra_op_threads": 2, "workers": workers}
    first, *others = learned(model, 12)
    gate = Gate(model, monkeypatch)

    async def go():
        async with engine(**settings) as made, gate.shut(made, first):
            waiting = [asyncio.create_task(made.run(work)) for work in others]
            await until_async(lambda: made.queued == 2)
            gate.open.set()
            await asyncio.gather(*waiting)

    asyncio.run(go())
    assert [threads(graph) == 2 for graph in gate.graphs[1:]] == wide


def learned(model, times):
    """Three tasks, each known to take so many times as long as a run needs to be for several threads."""
    works = [simple(model, seed=seed) for seed in range(3)]
    for _ in range(200):
        works[0].graph.cost.learn(works[0].size, times * MIN_PARALLEL_NS)
    return works
