"""Texts of different lengths in one request: run in groups of similar lengths, with the answers of one run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.model.loader import open_version
from service.model.padding import MAX_SHARE, length_groups
from service.ort.provider import choose

WIDTH = 16
LENGTHS = st.lists(st.integers(1, WIDTH), min_size=2, max_size=60).map(lambda lengths: [WIDTH, *lengths])


@pytest.fixture(scope="module")
def model(texts_repository):
    return open_version(texts_repository / "bert" / "1", choose("cpu"), 1)


def padded(lengths):
    """Token ids of rows of these lengths, and the mask of their padding."""
    rng = np.random.default_rng(len(lengths))
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return {"input_ids": rng.integers(1, 20, mask.shape) * mask, "attention_mask": mask}


@given(LENGTHS)
def test_answers_are_those_of_one_run(model, lengths):
    inputs = padded(lengths)
    found = length_groups(model.signature, inputs, ["embedding"])
    if found is None:
        return
    assert sorted(np.concatenate([rows for rows, _ in found.groups])) == list(range(len(lengths)))
    graph = model.graph_for(inputs, ["embedding"], model.bind(inputs))
    sizes = []

    def execute(part, outputs):
        sizes.append(part["input_ids"].size)
        return model.run(graph, part, outputs)

    actual = found.run(execute, inputs, ["embedding"])
    expected = model.run(graph, inputs, ["embedding"])
    np.testing.assert_allclose(actual["embedding"], expected["embedding"], atol=2 * model.spec.tolerance["embedding"])
    assert sum(sizes) <= MAX_SHARE * inputs["input_ids"].size


def test_long_texts_beside_short_ones_are_groups(model):
    found = length_groups(model.signature, padded([3, 16, 4, 15, *[3] * 30, *[16] * 8]), ["embedding"])
    assert [(len(rows), length) for rows, length in found.groups] == [(10, 16), (32, 4)]


def test_a_head_mask_of_the_size_of_the_tokens_stays_whole(model):
    """[layers, heads] may be as large as [batch, n]."""
    inputs = padded([16] * 8 + [3] * 30) | {"head_mask": np.ones((38, 16), np.float32)}
    found = length_groups(model.signature, inputs, ["embedding"])
    shapes = []

    def execute(part, outputs):
        shapes.append(part["head_mask"].shape)
        return {"embedding": np.zeros((len(part["input_ids"]), 8), np.float32)}

    found.run(execute, inputs, ["embedding"])
    assert shapes == [(38, 16), (38, 16)]


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (padded([16] * 10), ["embedding"]),  # nothing is padded
        (padded([16, 3, 3]), ["embedding"]),  # too few tokens for two runs
        (padded([16] * 8 + [3] * 30), ["embedding", "output"]),  # an output with a value for each token
        ({name: array[:, ::-1] for name, array in padded([16] * 8 + [3] * 30).items()}, ["embedding"]),  # left padding
        (padded([16] * 8 + [0] * 30), ["embedding"]),  # rows without a token
        ({"input_ids": padded([16] * 8 + [3] * 30)["input_ids"]}, ["embedding"]),  # no mask
    ],
    ids=["equal", "few", "each-token", "left", "no-tokens", "no-mask"],
)
def test_one_run_is_as_good(model, inputs, outputs):
    assert length_groups(model.signature, inputs, outputs) is None
