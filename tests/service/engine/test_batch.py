"""Tasks joined and taken apart again: each answer is that of it alone, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.catalogue import BLOCKS
from models.examples import OPTIONS, draw
from service.engine.run import run_alone
from tests.support import graphs
from tests.support.batching import foreign_task, stack_key, stacked
from tests.support.tasks import HEADS, drawn, opened, options_of, work_of

NOT_EXACT = {"cosine", "linear"}  # they sum over an axis whose rows are aligned differently in another place


def blocks_without(*names):
    """All blocks but these; two of them are fast enough for each run of the tests."""
    marks = dict.fromkeys(BLOCKS.keys() - {"scaled_dot_product", "multi_head"}, pytest.mark.extended)
    return [pytest.param(name, marks=marks.get(name, ())) for name in sorted(BLOCKS.keys() - {*names})]


@pytest.mark.parametrize("name", blocks_without(*NOT_EXACT))
@settings(max_examples=12)
@given(
    data=st.data(), m=st.integers(1, 40), n=st.integers(1, 40), rows=st.lists(st.integers(1, 3), min_size=2, max_size=5)
)
def test_stacked_to_the_last_bit(block, name, data, m, n, rows):
    model = block(name)
    option = data.draw(st.sampled_from([key for key in options_of(name) if "learned" not in key]))
    outputs = data.draw(st.sampled_from([["output"], ["output", "weights"], list(model.outputs)]))
    tasks = [drawn(model, m, n, of, option, seed, outputs) for seed, of in enumerate(rows)]
    assert stack_key(tasks[0]) is not None
    tasks = [task for task in tasks if stack_key(task) == stack_key(tasks[0])]
    for task, answer in zip(tasks, stacked(tasks), strict=True):
        for output, alone in run_alone(task).items():
            assert answer[output].tobytes() == alone.tobytes(), output
            assert answer[output].shape == alone.shape


@pytest.mark.parametrize("name", sorted(NOT_EXACT))
def test_what_may_not_be_joined_has_no_key(block, name):
    assert stack_key(drawn(block(name), 4, 5, 1, "plain", 0, ["output", "weights"])) is None


def ones(*shape):
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("multi_head", [{"option": of} for of in ("plain", "is_causal", "softcap", "past")]),
        ("multi_head", [{}, {"n": 5}, {"m": 5}]),
        ("encoder", [{"layers": np.array(layers)} for layers in ([0], [1], [0, 1])]),
        ("multi_head", [{}, {"scale": ones()}, {"scale": 2 * ones()}, {"outputs": ["output"]}]),
        ("scaled_dot_product", [{}, {"sinks": ones(2)}, {"sinks": 2 * ones(2)}]),
        ("grouped_query", [{}, {"alibi_slopes": ones(8)}, {"alibi_slopes": 2 * ones(8)}]),
    ],
)
def test_what_differs_is_not_joined(block, name, variants):
    """A run has one of the numbers without rows for all its rows."""
    values = [stack_key(plain(block(name), **variant)) for variant in variants]
    assert None not in values
    assert len({*values}) == len(values)
    assert values == [stack_key(plain(block(name), **variant)) for variant in variants]


@pytest.mark.parametrize(
    ("name", "matrix"), [("multi_head", {"q_proj_weight": ones(64, 64)}), ("additive", {"v_weight": ones(1, 20)})]
)
def test_matrices_that_differ_keep_tasks_apart(block, name, matrix):
    """Tasks with equal matrices may be joined, where a graph that multiplies by them is exact."""
    one, two = (
        stack_key(plain(block(name), **{of: times * array for of, array in matrix.items()})) for times in (1, 2)
    )
    assert one is None or one != two
    assert stack_key(plain(block(name))) not in (None, one)


def plain(model, m=4, n=4, option="plain", outputs=None, **change):
    """A task of one row, with changed inputs."""
    inputs = draw(BLOCKS[model.name], HEADS | {"batch": 1, "m": m, "n": n}, OPTIONS[option])
    return work_of(model, inputs | change, outputs)


def test_a_foreign_model_is_stacked_only_where_it_is_asked_for(tmp_path):
    graphs.adder(tmp_path / "adder" / "1")
    assert opened(tmp_path / "adder" / "1").batching is None
    assert opened(tmp_path / "adder" / "1", "other").batching is None
    for names in ("all", "other,adder"):
        model = opened(tmp_path / "adder" / "1", names)
        inputs = [{key: np.full((rows, 3), rows, np.float32) for key in "xz"} for rows in (1, 2)]
        tasks = [foreign_task(model, each, ["y"]) for each in inputs]
        assert stack_key(tasks[0]) == stack_key(tasks[1]) is not None
        assert [answer["y"].tolist() for answer in stacked(tasks)] == [[[3.0] * 3], [[5.0] * 3] * 2]
    graphs.product(tmp_path / "product" / "1")  # which has no batch axis
    assert opened(tmp_path / "product" / "1", "all").batching is None
