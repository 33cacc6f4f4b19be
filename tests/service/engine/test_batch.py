"""Works joined and taken apart again: stacked, each answer is that of it alone to the last bit; padded, the truth."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.catalogue import BLOCKS
from models.examples import OPTIONS, draw
from service.engine import batch
from service.engine.run import run_alone
from service.engine.task import InferenceTask
from tests.support import graphs
from tests.support.attending import assert_close
from tests.support.tasks import HEADS, drawn, opened, options_of, work_of

SETTINGS = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
NOT_EXACT = {"cosine", "linear"}  # they sum over an axis whose rows are aligned differently in another place
WITHOUT_MASK = {"linear", "efficient"}


def stack_key(work: InferenceTask) -> object:
    return work.model.batching.stack_key(work.graph, work.inputs, work.outputs)


def pad_key(work: InferenceTask) -> object:
    return work.model.batching.pad_key(work.graph, work.inputs, work.outputs, work.sizes)


@pytest.fixture(scope="module")
def models(repository):
    return {name: opened(repository / name / "1") for name in BLOCKS}


@pytest.mark.parametrize("name", sorted(BLOCKS.keys() - NOT_EXACT))
@SETTINGS
@given(
    data=st.data(), m=st.integers(1, 40), n=st.integers(1, 40), rows=st.lists(st.integers(1, 3), min_size=2, max_size=5)
)
def test_stacked_to_the_last_bit(models, name, data, m, n, rows):
    model = models[name]
    option = data.draw(st.sampled_from([key for key in options_of(name) if "learned" not in key]))
    outputs = data.draw(st.sampled_from([["output"], ["output", "weights"], list(model.outputs)]))
    works = [drawn(model, m, n, of, option, seed, outputs) for seed, of in enumerate(rows)]
    works = [work for work in works if stack_key(work) == stack_key(works[0])]
    assert stack_key(works[0]) is not None
    joined = model.run(works[0].graph, batch.stack(works, model.batching), outputs)
    for work, answer in zip(works, batch.split(joined, works, model.batching, model), strict=True):
        for output, alone in run_alone(work).items():
            assert answer[output].tobytes() == alone.tobytes(), output
            assert answer[output].shape == alone.shape


@pytest.mark.parametrize("name", sorted(NOT_EXACT))
def test_what_is_not_exact_is_not_stacked(models, name):
    model = models[name]
    assert stack_key(drawn(model, 4, 4, 1, "plain", 0, ["output", "weights"])) is None


@pytest.mark.parametrize("name", sorted(BLOCKS.keys() - NOT_EXACT - WITHOUT_MASK))
@SETTINGS
@given(
    data=st.data(), lengths=st.lists(st.tuples(*[st.integers(1, 30)] * 2, st.integers(1, 2)), min_size=2, max_size=4)
)
def test_padded_is_the_truth(models, name, data, lengths):
    model = models[name]
    option = data.draw(
        st.sampled_from([key for key in options_of(name) if "nonpad" not in key and "learned" not in key])
    )
    works = [drawn(model, m, n, rows, option, seed) for seed, (m, n, rows) in enumerate(lengths)]
    kin = pad_key(works[0])
    assert kin is not None
    works = [work for work in works if pad_key(work) == kin]
    joined = batch.pad(works, model.batching, model)
    graph = model.graph_for(joined, works[0].outputs, model.bind(joined))
    answers = batch.split(model.run(graph, joined, works[0].outputs), works, model.batching, model)
    for work, answer in zip(works, answers, strict=True):
        alone = run_alone(work)
        assert {key: array.shape for key, array in answer.items()} == {key: x.shape for key, x in alone.items()}
        assert_close(name, answer, work.inputs)


@pytest.mark.parametrize("name", sorted(WITHOUT_MASK))
def test_without_a_mask_nothing_is_padded(models, name):
    assert pad_key(drawn(models[name], 4, 5, 1, "plain", 0, ["output"])) is None


def test_lengths_that_are_said_are_not_padded(models):
    """With nonpad_kv_seqlen the number of queries decides which keys they see."""
    model = models["multi_head_self_attention"]
    assert pad_key(drawn(model, 4, 4, 1, "nonpad", 0)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("is_causal", 5, 5), ("plain", 5, 5)),
        (("softcap", 5, 5), ("plain", 5, 5)),
        (("past", 5, 5), ("plain", 5, 5)),
        (("plain", 5, 6), ("plain", 5, 7)),
        (("plain", 5, 6), ("plain", 6, 6)),
    ],
)
def test_what_differs_is_not_stacked(models, one, other):
    model = models["multi_head"]
    alike = [stack_key(drawn(model, m, n, 1, option, 0)) for option, m, n in (one, other)]
    assert alike[0] != alike[1]


def test_options_and_outputs_that_differ_keep_works_apart(models):
    model = models["multi_head"]
    inputs = draw(BLOCKS["multi_head"], HEADS | {"batch": 1, "m": 4, "n": 4}, OPTIONS["plain"])
    works = [work_of(model, inputs | {"scale": np.float32(scale)}) for scale in (0.25, 0.5)]
    works += [work_of(model, inputs, ["output"]), work_of(model, inputs, ["output", "weights"])]
    for key in (stack_key, pad_key):
        assert len({key(work) for work in works}) == 4


@pytest.mark.parametrize(
    ("block", "name", "shape"),
    [
        ("scaled_dot_product", "sinks", (2,)),
        ("grouped_query", "alibi_slopes", (8,)),
    ],
)
def test_numbers_without_rows_that_differ_keep_works_apart(models, block, name, shape):
    """They have no batch axis: a run has one of them for all its rows."""
    model = models[block]
    inputs = draw(BLOCKS[block], HEADS | {"batch": 1, "m": 4, "n": 4}, OPTIONS["plain"])
    works = [work_of(model, inputs | {name: np.full(shape, number, np.float32)}) for number in (1, 2, 1)]
    for key in (stack_key, pad_key):
        assert key(works[0]) == key(works[2]) is not None
        assert key(works[0]) != key(works[1])


@pytest.mark.parametrize(
    ("block", "name", "shape"), [("multi_head", "q_proj_weight", (64, 64)), ("additive", "v_weight", (1, 20))]
)
def test_matrices_that_differ_keep_works_apart(models, block, name, shape):
    """Works with equal matrices may be joined, where a graph that multiplies by them is exact."""
    model = models[block]
    inputs = draw(BLOCKS[block], HEADS | {"batch": 1, "m": 4, "n": 4}, OPTIONS["plain"])
    works = [work_of(model, inputs | {name: np.full(shape, number, np.float32)}) for number in (1, 2)]
    for key in (stack_key, pad_key):
        assert key(works[0]) is None or key(works[0]) != key(works[1])
        assert key(work_of(model, inputs, ["output"])) not in (None, key(works[0]))


def test_layers_that_differ_keep_works_apart(models):
    model = models["encoder"]
    ids = np.zeros((1, 4), np.int64)
    works = [work_of(model, {"input_ids": ids, "layers": np.array(layers)}) for layers in ([0], [1], [0, 1])]
    assert len({stack_key(work) for work in works}) == 3


def test_a_foreign_model_is_stacked_only_where_it_is_asked_for(tmp_path):
    graphs.adder(tmp_path / "adder" / "1")
    assert opened(tmp_path / "adder" / "1").batching is None
    assert opened(tmp_path / "adder" / "1", "other").batching is None
    for names in ("all", "other,adder"):
        model = opened(tmp_path / "adder" / "1", names)
        inputs = [{key: np.full((rows, 3), rows, np.float32) for key in "xz"} for rows in (1, 2)]
        works = [InferenceTask(model, model.estimate(each, ["y"], {}), each, ["y"], len(each["x"])) for each in inputs]
        assert stack_key(works[0]) == stack_key(works[1]) is not None
        assert pad_key(works[0]) is None
        found = model.run(works[0].graph, batch.stack(works, model.batching), ["y"])
        answers = batch.split(found, works, model.batching, model)
        assert [answer["y"].tolist() for answer in answers] == [[[3.0] * 3], [[5.0] * 3] * 2]


def test_a_foreign_model_without_a_batch_axis_is_never_stacked(tmp_path):
    graphs.product(tmp_path / "product" / "1")
    assert opened(tmp_path / "product" / "1", "all").batching is None
