"""Which foreign models have a batch axis where names do not say so: a trial run decides, and can harm nobody."""

import logging

import numpy as np
import psutil
import pytest

from service.engine import batch
from service.engine.run import run_alone
from service.engine.task import InferenceTask
from service.model import batch_axis
from service.model.loader import load_version
from service.ort.provider import Provider
from tests.support import graphs


def opened(folder, most=8, batch_models="", must_batch=False):
    return load_version(folder, Provider("cpu", "asked for"), 1, most, batch_models, must_batch)


BATCHED = {
    "Triton's simple": graphs.triton_simple,
    "Triton's simple_string": lambda folder: graphs.triton_simple(folder, "BYTES"),
    "Triton's add_sub": graphs.triton_add_sub,
    "named in the inputs alone": lambda folder: graphs.triton_add_sub(folder, "N"),
    "scikit-learn": graphs.scikit_learn,
    **{
        f"Triton's identity of {name}": lambda folder, name=name: graphs.triton_identity(folder, name)
        for name in ("FP32", "FP16", "BF16", "BOOL", "UINT8", "INT64", "BYTES")
    },
}


@pytest.mark.parametrize("write", BATCHED.values(), ids=BATCHED)
def test_two_rows_that_are_answered_as_each_alone_are_a_batch(tmp_path, write):
    write(tmp_path / "model" / "1")
    model = opened(tmp_path / "model" / "1")
    assert model.max_batch_size == 8
    assert model.batched == {*model.inputs, *model.outputs}


SINGLE = {
    "mixed": (graphs.mixed, "input 'count' has the fixed first dimension 4"),
    "product": (graphs.product, "a trial run of two rows failed, of each alone it did not"),
    "centred": (graphs.centred, "in a trial run a row of output 'y' depended on the other rows"),
    "flipped": (graphs.flipped, r"output 'y' did not follow the rows: \[\[3, 1\], \[3, 1\], \[3, 2\]\]"),
    "quotient": (graphs.quotient, "a trial run was ended by SIGFPE"),
    "huge": (graphs.huge, "a trial run failed"),
    "pairwise": (graphs.pairwise_scores, "dimension 'batch' of 'scores' is not only a first dimension"),
}


@pytest.mark.parametrize(("write", "reason"), SINGLE.values(), ids=SINGLE)
def test_others_have_none_and_a_load_that_asks_for_one_is_refused(tmp_path, write, reason, caplog):
    write(tmp_path / "model" / "1")
    with caplog.at_level(logging.INFO, "heed"):
        assert opened(tmp_path / "model" / "1").max_batch_size == 0
    assert "model model has no batch axis: " in caplog.text
    with pytest.raises(ValueError, match=f"^max_batch_size 8 cannot be honoured, no batch axis: .*{reason}"):
        opened(tmp_path / "model" / "1", must_batch=True)


def test_a_trial_ends_in_time(tmp_path, monkeypatch):
    """A graph whose loop never ends; there is no process left of it either."""
    monkeypatch.setattr(batch_axis, "TRIAL_SECONDS", 3)
    graphs.endless(tmp_path / "endless" / "1")
    before = psutil.Process().children(recursive=True)
    with pytest.raises(ValueError, match="a trial run took longer than 3 s"):
        opened(tmp_path / "endless" / "1", must_batch=True)
    assert set(psutil.Process().children(recursive=True)) <= set(before)


def test_a_large_model_is_not_opened_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_axis, "LARGEST_TRIAL_BYTES", 100)
    graphs.triton_simple(tmp_path / "simple" / "1")
    with pytest.raises(ValueError, match=r"too large for a trial run \(at most 100\)"):
        opened(tmp_path / "simple" / "1", must_batch=True)


@pytest.mark.parametrize("most", [0, 8])
def test_no_process_is_started_where_names_or_settings_decide(tmp_path, monkeypatch, most):
    monkeypatch.setattr(batch_axis.subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    (graphs.adder if most else graphs.triton_simple)(tmp_path / "model" / "1")
    assert opened(tmp_path / "model" / "1", most).max_batch_size == most


def test_such_a_model_can_share_runs(tmp_path):
    """HEED_BATCH_MODELS: rows of two requests in one run, taken apart again."""
    graphs.scikit_learn(tmp_path / "iris" / "1")
    model = opened(tmp_path / "iris" / "1", batch_models="iris")
    rows = np.random.default_rng(0).uniform(0.1, 7, (3, 4)).astype(np.float32)
    inputs, outputs = [{"X": rows[:1]}, {"X": rows[1:]}], ["label", "probabilities"]
    works = [InferenceTask(model, model.estimate(each, outputs, {}), each, outputs, len(each["X"])) for each in inputs]
    one, other = (model.batching.stack_key(work.graph, work.inputs, work.outputs) for work in works)
    assert one == other is not None
    found = model.run(works[0].graph, batch.stack(works, model.batching), outputs)
    for work, answer in zip(works, batch.split(found, works, model.batching, model), strict=True):
        alone = run_alone(work)
        assert answer["label"].tolist() == alone["label"].tolist()
        np.testing.assert_array_equal(answer["probabilities"], alone["probabilities"])


def test_a_model_to_batch_that_has_no_batch_axis_is_a_warning(tmp_path, caplog):
    graphs.centred(tmp_path / "centred" / "1")
    with caplog.at_level(logging.WARNING, "heed"):
        assert opened(tmp_path / "centred" / "1", batch_models="other,centred").batching is None
    assert "model centred has no batch axis: in a trial run a row of output 'y' depended" in caplog.text
