"""Which foreign models have a batch axis where names do not say so: a trial run decides, in a process of its own."""

import logging

import numpy as np
import psutil
import pytest

from service.engine.run import run_alone
from service.model import batch_axis
from service.model.loader import load_version
from service.ort.provider import Provider
from tests.support import graphs
from tests.support.batching import foreign_task, stack_key, stacked


def opened(folder, most=8, batch_models="", must_batch=False):
    return load_version(folder, Provider("cpu", "requested"), 1, most, batch_models, must_batch)


def cases(table, extended=()):
    """The parameters of the cases in a table, some of which take long."""
    marks = {True: [pytest.mark.extended], False: []}
    return [pytest.param(*case, id=name, marks=marks[name in extended]) for name, case in table.items()]


BATCHED = {
    "Triton's simple": (graphs.triton_simple,),
    "Triton's simple_string": (graphs.triton_simple, "BYTES"),
    "Triton's add_sub": (graphs.triton_add_sub,),
    "named in the inputs alone": (graphs.triton_add_sub, "N"),
    "scikit-learn": (graphs.scikit_learn,),
    **{of: (graphs.triton_identity, of) for of in ("FP32", "FP16", "BF16", "BOOL", "UINT8", "INT64", "BYTES")},
}


@pytest.mark.parametrize("case", cases({name: (case,) for name, case in BATCHED.items()}, [*BATCHED][4:]))
def test_two_rows_that_are_answered_as_each_alone_are_a_batch(tmp_path, case):
    write, *arguments = case
    write(tmp_path / "model" / "1", *arguments)
    model = opened(tmp_path / "model" / "1")
    assert model.max_batch_size == 8
    assert model.batched == {*model.inputs, *model.outputs}


SINGLE = {
    "mixed": (graphs.mixed, "input 'count' has the fixed first dimension 4"),
    "product": (graphs.product, "a trial run of two rows failed, although each row alone succeeded"),
    "centred": (graphs.centred, "in a trial run a row of output 'y' depended on the other rows"),
    "flipped": (graphs.flipped, "output 'y' did not follow the rows: [[3, 1], [3, 1], [3, 2]]"),
    "quotient": (graphs.quotient, "a trial run was killed by SIGFPE"),
    "huge": (graphs.huge, "a trial run failed"),
    "pairwise": (graphs.pairwise_scores, "dimension 'batch' is also a later dimension of 'scores'"),
}


@pytest.mark.parametrize(("write", "reason"), cases(SINGLE, {"quotient", "huge"}))
def test_others_have_none(tmp_path, write, reason, caplog):
    write(tmp_path / "model" / "1")
    with caplog.at_level(logging.INFO, "heed"):
        assert opened(tmp_path / "model" / "1").max_batch_size == 0
    assert "model model has no batch axis: " in caplog.text
    assert reason in caplog.text


def test_a_batch_axis_that_is_asked_for_and_absent_is_an_error_or_a_warning(tmp_path, caplog):
    graphs.mixed(tmp_path / "mixed" / "1")
    with pytest.raises(ValueError, match=r"^max_batch_size 8 cannot be honoured, no batch axis: input 'count' has the"):
        opened(tmp_path / "mixed" / "1", must_batch=True)
    with caplog.at_level(logging.WARNING, "heed"):
        assert opened(tmp_path / "mixed" / "1", batch_models="other,mixed").batching is None
    assert "model mixed has no batch axis: input 'count' has the fixed first dimension" in caplog.text


LIMITS = {
    "a loop that never ends": (graphs.endless, "TRIAL_SECONDS", 3, "a trial run took longer than 3 s"),
    "a large model": (graphs.triton_simple, "LARGEST_TRIAL_BYTES", 100, r"too large for a trial run \(at most 100\)"),
}


@pytest.mark.parametrize(("write", "limit", "most", "message"), cases(LIMITS, {"a loop that never ends"}))
def test_a_trial_has_limits(tmp_path, monkeypatch, write, limit, most, message):
    """And leaves no process."""
    monkeypatch.setattr(batch_axis, limit, most)
    write(tmp_path / "model" / "1")
    before = psutil.Process().children(recursive=True)
    with pytest.raises(ValueError, match=message):
        opened(tmp_path / "model" / "1", must_batch=True)
    assert set(psutil.Process().children(recursive=True)) <= set(before)


@pytest.mark.parametrize("most", [0, 8])
def test_no_process_is_started_where_names_or_settings_decide(tmp_path, monkeypatch, most):
    monkeypatch.setattr(batch_axis.subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    (graphs.adder if most else graphs.triton_simple)(tmp_path / "model" / "1")
    assert opened(tmp_path / "model" / "1", most).max_batch_size == most


def test_such_a_model_can_share_runs(tmp_path):
    """HEED_BATCHING: rows of two requests in one run, taken apart again."""
    graphs.scikit_learn(tmp_path / "iris" / "1")
    model = opened(tmp_path / "iris" / "1", batch_models="iris")
    rows = np.random.default_rng(0).uniform(0.1, 7, (3, 4)).astype(np.float32)
    tasks = [foreign_task(model, {"X": of}, ["label", "probabilities"]) for of in (rows[:1], rows[1:])]
    assert stack_key(tasks[0]) == stack_key(tasks[1]) is not None
    for task, answer in zip(tasks, stacked(tasks), strict=True):
        alone = run_alone(task)
        assert answer["label"].tolist() == alone["label"].tolist()
        np.testing.assert_array_equal(answer["probabilities"], alone["probabilities"])
