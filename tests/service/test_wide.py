"""Long runs use more threads, short ones one; both give the same numbers."""

import shutil

import numpy as np
import pytest

from service.graph import WIDE
from service.model import Model
from service.provider import Provider
from service.work import Work

SIZE = 1000


@pytest.fixture
def model(repository, tmp_path):
    shutil.copytree(repository / "multi_head_self_attention" / "1", tmp_path / "block" / "1")
    return Model(tmp_path / "block" / "1", Provider("cpu", "asked for"), 2)


def threads(graph):
    return graph.session.get_session_options().intra_op_num_threads


def test_by_what_a_run_is_known_to_take(model):
    graph = model.graphs[0]
    assert threads(graph.for_size(SIZE, to_learn=False)) == 1  # nothing is known
    graph.cost.learn(SIZE, WIDE / 2)
    assert threads(graph.for_size(SIZE, to_learn=False)) == 1
    for _ in range(200):
        graph.cost.learn(SIZE, 2 * WIDE)
    wide = graph.for_size(SIZE, to_learn=False)
    assert threads(wide) == 2
    assert graph.for_size(SIZE, to_learn=False) is wide  # opened once
    assert graph.for_size(SIZE, to_learn=True) is graph  # hardly long: one slow moment is not remembered for ever
    for _ in range(200):
        graph.cost.learn(SIZE, 100 * WIDE)
    assert graph.for_size(SIZE, to_learn=True) is wide


def test_the_same_numbers(model):
    (name,) = (name for name, of in model.inputs.items() if of.required)
    depth = model.inputs[name].shape[-1]
    inputs = {name: np.random.default_rng(0).standard_normal((2, 128, int(depth))).astype(np.float32)}
    need = model.need(inputs, ["output", "weights"], model.bind(inputs))
    narrow = Work(model, need, inputs, ["output", "weights"]).run()
    for _ in range(200):
        need.graph.cost.learn(need.size, 100 * WIDE)
    assert threads(need.graph.for_size(need.size, to_learn=False)) == 2
    wide = Work(model, need, inputs, ["output", "weights"]).run()
    for output, array in narrow.items():
        np.testing.assert_allclose(wide[output], array, rtol=1e-5, atol=1e-6)


def test_a_file_that_is_gone_ends_nothing(model, tmp_path):
    graph = model.graphs[0]
    graph.cost.learn(SIZE, 100 * WIDE)
    shutil.rmtree(tmp_path / "block")
    assert threads(graph.for_size(SIZE, to_learn=False)) == 1


def test_one_thread_is_all_there_is(repository):
    model = Model(repository / "dot_product" / "1", Provider("cpu", "asked for"), 1)
    graph = model.graphs[0]
    graph.cost.learn(SIZE, 100 * WIDE)
    assert graph.for_size(SIZE, to_learn=False) is graph
