"""Texts of different lengths in one request: run in groups of similar lengths, with the answers of one run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.model.padding import MAX_SHARE, length_groups
from service.model.spec import BlockSpec, Signature
from service.tensors.spec import TensorSpec

WIDTH = 16
LENGTHS = st.lists(st.integers(1, WIDTH), min_size=2, max_size=60).map(lambda lengths: [WIDTH, *lengths])
INPUTS = dict.fromkeys(("input_ids", "attention_mask"), ("batch", "n")) | {"head_mask": ("layers", "heads")}
OUTPUTS = {"embedding": ("batch", 2), "output": ("batch", "n", 2)}
SIGNATURE = Signature(
    BlockSpec.model_construct(),
    *({name: TensorSpec(name, np.dtype(np.float32), of[name]) for name in of} for of in (INPUTS, OUTPUTS)),
)


def padded(lengths):
    """Token ids of rows of these lengths, and the mask of their padding."""
    rng = np.random.default_rng(len(lengths))
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return {"input_ids": rng.integers(1, 20, mask.shape) * mask, "attention_mask": mask}


LONG_AND_SHORT = padded([16] * 8 + [3] * 30)


@given(LENGTHS, st.booleans())
def test_answers_are_those_of_one_run(lengths, has_head_mask):
    """[layers, heads] of a head mask may be as large as [batch, n]: it stays whole."""
    inputs = padded(lengths) | ({"head_mask": np.ones((len(lengths), WIDTH))} if has_head_mask else {})
    groups = length_groups(SIGNATURE, inputs, ["embedding"])
    if groups is None:
        return
    sizes = []

    def execute(part, outputs):
        sizes.append(part["input_ids"].size)
        assert "head_mask" not in inputs or part["head_mask"] is inputs["head_mask"]
        return {outputs[0]: np.stack([(part["input_ids"] ** power).sum(1) for power in (1, 2)], 1)}

    results = groups.run(execute, inputs, ["embedding"])
    assert sum(sizes) <= MAX_SHARE * inputs["input_ids"].size
    np.testing.assert_array_equal(results["embedding"], execute(inputs, ["embedding"])["embedding"])


def test_long_texts_beside_short_ones_are_groups():
    groups = length_groups(SIGNATURE, padded([3, 16, 4, 15, *[3] * 30, *[16] * 8]), ["embedding"]).groups
    assert [(len(rows), length) for rows, length in groups] == [(10, 16), (32, 4)]


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (padded([16] * 10), ["embedding"]),  # nothing is padded
        (padded([16, 3, 3]), ["embedding"]),  # too few tokens for two runs
        (LONG_AND_SHORT, ["embedding", "output"]),  # an output with a value for each token
        ({name: array[:, ::-1] for name, array in LONG_AND_SHORT.items()}, ["embedding"]),  # left padding
        (padded([16] * 8 + [0] * 30), ["embedding"]),  # rows without a token
        ({"input_ids": LONG_AND_SHORT["input_ids"]}, ["embedding"]),  # no mask
    ],
    ids=["equal", "few", "each-token", "left", "no-tokens", "no-mask"],
)
def test_one_run_is_as_good(inputs, outputs):
    assert length_groups(SIGNATURE, inputs, outputs) is None
