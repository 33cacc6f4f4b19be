"""Selected, reduced and derived attention by the client, natively and in binary, sync and async."""

import numpy as np
import pytest
import torch

from heed_client import BadRequest, Quantized, TopK
from tests.support.client_calls import SDPA, V1, both, sdpa

IDS = {"input_ids": np.arange(12).reshape(2, 6)}
STACK = {"outputs": ["weights", "entropy", "received", "rollout"]}
MADE = {  # options, and what numpy makes of all weights
    "text": ({"heads": "0,2", "queries": "-1"}, lambda w: w[:, [0, 2], -1:]),
    "a number": ({"heads": 1}, lambda w: w[:, 1:2]),
    "a list": ({"heads": [2, 0], "queries": [1]}, lambda w: w[:, [2, 0], 1:2]),
    "an array": ({"queries": np.arange(1, 4)}, lambda w: w[..., 1:4, :]),
    "a tensor": ({"queries": torch.arange(1, 4)}, lambda w: w[..., 1:4, :]),
    "mean": ({"reduce_heads": "mean"}, lambda w: w.mean(1)),
    "average": ({"average_attn_weights": True}, lambda w: w.mean(1)),
    "max": ({"reduce_heads": "max", "queries": "0:2"}, lambda w: w[..., :2, :].max(1)),
    "float16": ({"weights_dtype": "float16"}, lambda w: w.astype(np.float16)),
}


@pytest.mark.parametrize(("options", "expected"), MADE.values(), ids=MADE)
def test_options(heed, options, expected):
    inputs = sdpa(2, 3)
    weights = heed.attend(SDPA, **inputs).weights
    found = both(heed, SDPA, **inputs, **options)
    np.testing.assert_allclose(found["weights"], expected(weights), rtol=1e-6, atol=1e-7)
    assert found["weights"].dtype == expected(weights).dtype


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_ranks(heed, leading):
    """The axes that the query omits are omitted of derived outputs, too."""
    found = both(heed, SDPA, **sdpa(*leading), outputs=["weights", "entropy", "received"], queries="1:3")
    assert [array.shape for array in found.values()] == [(*leading, 2, 7), (*leading, 2), (*leading, 7)]
    reduced = both(heed, SDPA, **sdpa(*leading), outputs=["weights", "entropy"], reduce_heads="mean")
    batch = leading[:1]
    assert [array.shape for array in reduced.values()] == [(*batch, 5, 7), (*batch, 5)]


def test_one_head(heed):
    x = np.ones((5, 32), np.float32)
    outputs = ["weights", "entropy", "head_statistics"]
    found = both(heed, "self_attention", x=x, outputs=outputs, reduce_heads="mean", queries=[0, 3])
    assert [array.shape for array in found.values()] == [(2, 5), (2,), (5,)]


@pytest.mark.parametrize("layers", ["1", 1, [1], "-1", np.array([1])], ids=str)
def test_a_stack(heed, layers):
    """``layers`` is an input of its graph."""
    weights = heed.attend("encoder", **IDS).weights
    found = both(heed, "encoder", **IDS, layers=layers, heads="1:3", **STACK)
    np.testing.assert_array_equal(found["weights"], weights[1:, :, 1:3])
    assert found["entropy"].shape == (1, 2, 2, 6)
    assert found["rollout"].shape == (2, 6, 6)
    np.testing.assert_allclose(found["rollout"].sum(-1), 1, rtol=1e-6)
    reduced = both(heed, "encoder", **IDS, reduce_heads="mean", reduce_layers="max", **STACK)
    np.testing.assert_allclose(reduced["weights"], weights.mean(2).max(0), rtol=1e-6)
    assert [array.shape for array in reduced.values()] == [(2, 6, 6), (2, 6), (2, 6), (2, 6, 6)]


@pytest.mark.parametrize("binary", [False, True])
def test_the_largest(heed, binary):
    inputs = sdpa(2, 3)
    weights = heed.attend(SDPA, **inputs).weights
    found = heed.attend(SDPA, **inputs, outputs=["weights", "output"], weights_top_k=np.int64(2), binary=binary)
    assert list(found) == ["weights", "output"]
    assert isinstance(found.weights, TopK)
    np.testing.assert_array_equal(found.weights.values, np.take_along_axis(weights, found.weights.indices, -1))
    assert found.weights.indices.shape == (2, 3, 5, 2)


@pytest.mark.parametrize("binary", [False, True])
def test_uint8(heed, binary):
    inputs = sdpa(2, 3)
    weights = heed.attend(SDPA, **inputs).weights
    found = heed.attend(SDPA, **inputs, weights_dtype="uint8", binary=binary)
    assert list(found) == ["output", "weights"]
    assert found.weights.dtype == np.float32
    scale = weights.max() / 255
    assert np.abs(found.weights - weights).max() <= scale / 2 * 1.0001
    raw = heed.attend(SDPA, **inputs, weights_dtype="uint8", quantized=True, binary=binary).weights
    assert isinstance(raw, Quantized)
    assert raw.levels.dtype == np.uint8
    assert raw.scale == pytest.approx(scale, rel=1e-6)
    np.testing.assert_array_equal(raw.dequantized(), found.weights)
    top = heed.attend(SDPA, **inputs, weights_dtype="uint8", weights_top_k=1, binary=binary).weights
    np.testing.assert_allclose(top.values[..., 0], weights.max(-1), atol=scale)


def test_pool(heed):
    found = both(heed, SDPA, **sdpa(2, 3, m=9, n=20), weights_pool=4, outputs=["weights", "scores"])
    assert found["weights"].shape == found["scores"].shape == (2, 3, 4, 4)


def test_decimals(heed):
    tensors = sdpa(1, 8, m=64, n=64)
    exact = heed.attend(SDPA, **tensors)
    rounded = heed.attend(SDPA, **tensors, decimals=3)
    for name, array in rounded.items():
        np.testing.assert_array_equal(array, np.round(exact[name].astype(np.float64), 3).astype(np.float32))
    with pytest.raises(BadRequest, match="decimals: expected a whole number from 0 to 7"):
        heed.attend(SDPA, **tensors, decimals=8)


def test_wrong_options(heed):
    with pytest.raises(BadRequest, match="from -3 to 2, for 3 heads of weights, got 7") as caught:
        heed.attend(SDPA, **sdpa(2, 3), heads=7, binary=True)
    assert (caught.value.status, caught.value.field) == (422, "heads")
    with pytest.raises(TypeError, match="heads: expected an index"):
        heed.attend(SDPA, **sdpa(), heads=0.5)
    with pytest.raises(BadRequest, match="unknown output 'rollout'"):
        heed.attend(SDPA, **sdpa(), outputs=["rollout"], binary=True)


def test_descriptions_have_derived_outputs(heed):
    assert list(heed.describe("encoder").derived) == ["entropy", "received", "rollout", "head_statistics"]
    assert list(heed.describe(SDPA).derived) == ["entropy", "received"]


def test_a_selection_is_sent_in_binary(heed):
    heed.describe("encoder")
    heed.asked.clear()
    heed.attend("encoder", input_ids=np.zeros((1, 200), int), layers="0", heads=[3], outputs=["weights"])
    assert heed.asked == ["POST /v2/models/encoder/infer"]
    assert V1 not in heed.asked[0]
