"""The axes that a request leaves out, in what a block of one head answers."""

import numpy as np
import pytest

from models.catalogue import BLOCKS
from models.examples import OPTIONS, SIZES, draw
from tests.support.attending import attend, post

ONE_HEAD = ("additive", "cross_attention", "luong_concat", "luong_general", "projected", "self_attention")
CASES = [
    (name, option)
    for name in ONE_HEAD
    for option in ("plain", "attn_mask", "past_causal")
    if BLOCKS[name].inputs.keys() >= {*OPTIONS[option].tensors}
]
LENGTHS = {**SIZES["distinct"], "batch": 1}


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
            assert array.ndim == (1 if output == "lse" else 2), output
            np.testing.assert_array_equal(array, whole[output].reshape(array.shape))
    average = attend(client, name, **without_both, average_attn_weights=True)["weights"]
    np.testing.assert_array_equal(average, found["weights"])
    top = attend(client, name, **without_both, weights_top_k=2)["weights"]
    assert top["values"].shape == (*found["weights"].shape[:-1], 2)


@pytest.mark.parametrize(
    ("block", "shape", "weights", "present_key"),
    [("self_attention", (2, 5, 32), (2, 1, 5, 5), (2, 1, 5, 16)), ("multi_query", (5, 64), (8, 5, 5), (1, 5, 8))],
    ids=["one head in a batch", "one head of keys, more of queries"],
)
def test_one_head_is_an_axis(client, block, shape, weights, present_key):
    found = attend(client, block, x=np.ones(shape, np.float32), outputs=["weights", "present_key"])
    assert (found["weights"].shape, found["present_key"].shape) == (weights, present_key)


@pytest.mark.parametrize("name", ["sinks", "alibi_slopes"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_a_number_of_each_head_is_one_number_without_heads(client, name, rank):
    drawn = np.random.default_rng(0).standard_normal((3, 1, 1, 4, 8), np.float32)
    query, key, value = drawn if rank > 1 else (drawn[0, :, :, :1], *drawn[1:])
    whole = attend(client, "scaled_dot_product", query=query, key=key, value=value, **{name: [0.5]})
    plain = attend(client, "scaled_dot_product", query=query, key=key, value=value)
    query = query.reshape(query.shape[4 - rank :])
    key, value = (array.reshape(array.shape[4 - max(rank, 2) :]) for array in (key, value))
    found = attend(client, "scaled_dot_product", query=query, key=key, value=value, **{name: 0.5})
    for output, array in found.items():
        np.testing.assert_array_equal(array, whole[output].reshape(array.shape))
        assert not np.array_equal(whole[output], plain[output])


@pytest.mark.parametrize("name", ["scaled_dot_product", "additive", "multi_head"])
def test_one_query_is_a_vector(client, name):
    """The answer has its rank: an output [d_v], a number as lse, and no axis for queries in weights."""
    inputs = draw(BLOCKS[name], LENGTHS | {"heads": 1, "kv_heads": 1, "m": 1}, OPTIONS["attn_mask"])
    inputs["attn_mask"] = inputs["attn_mask"][:, :1]
    outputs = ["output", "weights", "scores", "lse"]
    whole = attend(client, name, **inputs, outputs=outputs)
    vectors = {
        key: x.reshape(x.shape[-1] if key in ("query", "attn_mask") else x.shape[-2:]) for key, x in inputs.items()
    }
    found = attend(client, name, **vectors, outputs=outputs)
    for output, array in found.items():
        np.testing.assert_array_equal(array.ravel(), whole[output].ravel())
    heads = () if name != "multi_head" else (8,)
    assert found["output"].ndim == 1
    assert found["weights"].shape == (*heads, LENGTHS["n"])
    assert found["lse"].shape == heads


def test_one_vector_is_no_sequence_that_attends_to_itself(client):
    response = post(client, "self_attention", {"x": [0.0] * 32})
    assert (response.status_code, response.json()["field"]) == (422, "x")
    assert "expected shape [batch, m, 32], or its last 2, got shape [32]" in response.json()["detail"]
