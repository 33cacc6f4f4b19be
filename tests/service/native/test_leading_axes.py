"""The axes that a request leaves out, in what a block of one head answers."""

import numpy as np
import pytest

from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, draw
from tests.support.attending import attend

ONE_HEAD = [name for name, block in BLOCKS.items() if block.outputs["weights"].shape[-3] == 1]
CASES = [
    (name, option)
    for name in ONE_HEAD
    for option in ("plain", "attn_mask", "past_causal")
    if BLOCKS[name].inputs.keys() >= {*OPTIONS[option].tensors}
]
LENGTHS = {**SIZES["distinct"], "batch": 1}


def test_which_blocks_have_one_head():
    assert sorted(ONE_HEAD) == [
        *("additive", "cross_attention", "luong_concat", "luong_general", "projected", "self_attention"),
    ]


@pytest.mark.parametrize(("name", "option"), CASES)
def test_one_head_without_a_batch_has_no_axis_for_heads(client, name, option):
    """Weights are [m, n], a past is [past, d]: the same numbers as with both axes, which may be given, too."""
    block, given = BLOCKS[name], OPTIONS[option]
    inputs = draw(block, LENGTHS, given)
    whole = attend(client, name, **inputs, outputs=list(block.outputs))
    masks_and_past = {"attn_mask", "past_key", "past_value"}
    without_batch = {key: array[0] if array.ndim else array for key, array in inputs.items()}
    without_both = {key: x[0] if key in masks_and_past else x for key, x in without_batch.items()}
    for request in (without_batch, without_both):
        found = attend(client, name, **request, outputs=list(block.outputs))
        for output, array in found.items():
            assert array.ndim == 2, output
            np.testing.assert_array_equal(array, whole[output].reshape(array.shape))
    average = attend(client, name, **without_both, average_attn_weights=True)["weights"]
    np.testing.assert_array_equal(average, found["weights"])
    top = attend(client, name, **without_both, weights_top_k=2)["weights"]
    assert top["values"].shape == (*found["weights"].shape[:-1], 2)


def test_a_batch_keeps_the_axis_of_one_head(client):
    x = np.random.default_rng(0).standard_normal((2, 5, 32), np.float32)
    found = attend(client, "self_attention", x=x, outputs=["weights", "present_key"])
    assert (found["weights"].shape, found["present_key"].shape) == ((2, 1, 5, 5), (2, 1, 5, 16))


def test_one_head_of_keys_is_an_axis_where_there_are_more_of_queries(client):
    x = np.random.default_rng(0).standard_normal((5, 64), np.float32)
    found = attend(client, "multi_query", x=x, outputs=["weights", "present_key"])
    assert (found["weights"].shape, found["present_key"].shape) == ((8, 5, 5), (1, 5, 8))
