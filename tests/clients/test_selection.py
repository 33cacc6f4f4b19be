"""Selected, reduced and derived attention by the client, natively and in binary, sync and async."""

import numpy as np
import pytest
import torch

from heed_client import Quantized, TopK
from tests.support.client_calls import SDPA, both, drawn, sdpa

IDS = {"input_ids": np.arange(12).reshape(2, 6)}
EXPECTED = {  # options, and what numpy makes of all weights
    "text": ({"heads": "0,2", "queries": "-1"}, lambda w: w[:, [0, 2], -1:]),
    "a number": ({"heads": 1}, lambda w: w[:, 1:2]),
    "a list": ({"heads": [2, 0], "queries": [1]}, lambda w: w[:, [2, 0], 1:2]),
    "an array": ({"queries": np.arange(1, 4)}, lambda w: w[..., 1:4, :]),
    "a tensor": ({"queries": torch.arange(1, 4)}, lambda w: w[..., 1:4, :]),
    "mean": ({"reduce_heads": "mean"}, lambda w: w.mean(1)),
    "average": ({"average_attn_weights": True}, lambda w: w.mean(1)),
    "max": ({"reduce_heads": "max", "queries": "0:2"}, lambda w: w[..., :2, :].max(1)),
    "float16": ({"weights_dtype": "float16"}, lambda w: w.astype(np.float16)),
    "a type of numpy": ({"weights_dtype": np.float16}, lambda w: w.astype(np.float16)),
    "a dtype of torch": ({"weights_dtype": torch.float16}, lambda w: w.astype(np.float16)),
}


@pytest.mark.parametrize(("options", "expected"), EXPECTED.values(), ids=EXPECTED)
def test_options(heed, options, expected):
    inputs = sdpa(2, 3)
    weights = heed.attend(SDPA, **inputs).weights
    outputs = both(heed, SDPA, **inputs, **options)
    np.testing.assert_allclose(outputs["weights"], expected(weights), rtol=1e-6, atol=1e-7)
    assert outputs["weights"].dtype == expected(weights).dtype


X, MASK, PAST = drawn(5, 32), drawn(5, 9), {"past_key": drawn(4, 16), "past_value": drawn(4, 32)}
ONE_HEAD = {"outputs": ["weights", "entropy", "head_statistics"], "reduce_heads": "mean", "queries": [0, 3]}
LIFTED = {"attn_mask": MASK[None], **{name: array[None] for name, array in PAST.items()}}
PRESENT = {"outputs": ["output", "weights", "present_key"]}
SHAPES = {
    "pool": (SDPA, sdpa(2, 3, m=9, n=20), {"weights_pool": 4, "outputs": ["weights", "scores"]}, [(2, 3, 4, 4)] * 2),
    "one head": ("self_attention", {"x": X}, ONE_HEAD, [(2, 5), (2,), (5,)]),
    "one head, a past": ("self_attention", {"x": X, "attn_mask": MASK, **PAST}, PRESENT, [(5, 32), (5, 9), (9, 16)]),
    "its axis": ("self_attention", {"x": X, **LIFTED}, PRESENT, [(5, 32), (5, 9), (9, 16)]),
    **{
        f"{leading} {reduced}": (
            SDPA,
            sdpa(*leading),
            {"queries": "1:3", "outputs": ["weights", "entropy", "received"], "reduce_heads": reduced},
            [(*axes, 2, 7), (*axes, 2), (*axes, 7)],
        )
        for leading in ((), (3,), (2, 3))
        for reduced, axes in ((None, leading), ("mean", leading[:1]))
    },
}


@pytest.mark.parametrize(("block", "inputs", "options", "shapes"), SHAPES.values(), ids=SHAPES)
def test_axes_that_are_left_out_of_the_inputs_are_left_out_of_all_outputs(heed, block, inputs, options, shapes):
    outputs = both(heed, block, **inputs, **options)
    assert [array.shape for array in outputs.values()] == shapes


LAYERS = {
    **{
        repr(one): ({"layers": one, "heads": "1:3"}, lambda w: w[1:, :, 1:3])
        for one in ("1", 1, [1], "-1", np.ones(1, int))
    },
    "reduced": ({"reduce_heads": "mean", "reduce_layers": "max"}, lambda w: w.mean(2).max(0)),
}


@pytest.mark.parametrize(("options", "expected"), LAYERS.values(), ids=LAYERS)
def test_a_stack(heed, options, expected):
    """``layers`` is an input of its graph."""
    weights = expected(heed.attend("encoder", **IDS).weights)
    outputs = both(heed, "encoder", **IDS, **options, outputs=["weights", "entropy", "received", "rollout"])
    np.testing.assert_allclose(outputs["weights"], weights, rtol=1e-6)
    assert [array.shape for array in outputs.values()] == [weights.shape, *[weights.shape[:-1]] * 2, (2, 6, 6)]
    np.testing.assert_allclose(outputs["rollout"].sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("binary", [False, True])
def test_the_largest(sync_heed, binary):
    inputs = sdpa(2, 3)
    weights = sync_heed.attend(SDPA, **inputs).weights
    answer = sync_heed.attend(SDPA, **inputs, outputs=["weights", "output"], weights_top_k=np.int64(2), binary=binary)
    assert list(answer) == ["weights", "output"]
    assert isinstance(answer.weights, TopK)
    np.testing.assert_array_equal(answer.weights.values, -np.sort(-weights, axis=-1)[..., :2])
    np.testing.assert_array_equal(answer.weights.values, np.take_along_axis(weights, answer.weights.indices, -1))


@pytest.mark.parametrize("binary", [False, True])
def test_uint8(heed, binary):
    weights = heed.attend(SDPA, **sdpa(2, 3)).weights
    scale = weights.max() / 255
    options = {**sdpa(2, 3), "weights_dtype": "uint8", "binary": binary}
    answer = heed.attend(SDPA, **options)
    assert list(answer) == ["output", "weights"]
    assert answer.weights.dtype == np.float32
    assert np.abs(answer.weights - weights).max() <= scale / 2 * 1.0001
    raw = heed.attend(SDPA, **options, quantized=True).weights
    assert isinstance(raw, Quantized)
    assert raw.levels.dtype == np.uint8
    assert raw.scale == pytest.approx(scale, rel=1e-6)
    np.testing.assert_array_equal(raw.dequantized(), answer.weights)
    top = heed.attend(SDPA, **options, weights_top_k=1).weights
    np.testing.assert_allclose(top.values[..., 0], weights.max(-1), atol=scale)


def test_decimals(heed):
    tensors = sdpa(1, 8, m=64, n=64)
    exact = heed.attend(SDPA, **tensors)
    rounded = heed.attend(SDPA, **tensors, decimals=3)
    for name, array in rounded.items():
        np.testing.assert_array_equal(array, np.round(exact[name].astype(np.float64), 3).astype(np.float32))


def test_a_selection_is_sent_in_binary(sync_heed):
    sync_heed.describe("encoder")
    sync_heed.asked.clear()
    sync_heed.attend("encoder", input_ids=np.zeros((1, 200), int), layers="0", heads=[3], outputs=["weights"])
    assert sync_heed.asked == ["POST /v2/models/encoder/infer"]
