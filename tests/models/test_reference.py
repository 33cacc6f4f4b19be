"""The reference against numbers computed by hand and torch's attention in float64."""

import math

import numpy as np
import pytest
import torch

from models import reference


def test_two_keys_by_hand():
    actual = reference.attention([[[[1.0]]]], [[[[0.0], [math.log(3)]]]], [[[[10.0], [20.0]]]])
    np.testing.assert_allclose(actual["weights"], [[[[0.25, 0.75]]]], rtol=1e-15)
    np.testing.assert_allclose(actual["output"], [[[[17.5]]]], rtol=1e-15)


def test_softcap_by_hand():
    actual = reference.attention([[[[4.0]]]], [[[[1.0]]]], [[[[1.0]]]], softcap=2.0, scale=1.0)
    np.testing.assert_allclose(actual["scores"], [[[[2 * math.tanh(2)]]]], rtol=1e-15)


def test_causal_offset_is_the_length_of_the_past():
    rng = np.random.default_rng(0)
    past = rng.standard_normal((1, 1, 3, 4))
    new = rng.standard_normal((1, 1, 2, 4))
    actual = reference.attention(new, new, new, past_key=past, past_value=past, is_causal=True)
    assert (actual["weights"][0, 0] > 0).tolist() == [[True] * 4 + [False], [True] * 5]


def test_causal_offset_with_key_lengths():
    x = np.ones((2, 1, 2, 1))
    keys = np.ones((2, 1, 4, 1))
    actual = reference.attention(x, keys, keys, nonpad_kv_seqlen=[4, 2], is_causal=True)
    assert (actual["weights"][0, 0] > 0).tolist() == [[True, True, True, False], [True, True, True, True]]
    assert (actual["weights"][1, 0] > 0).tolist() == [[True, False, False, False], [True, True, False, False]]


def test_window_by_hand():
    x = np.ones((1, 1, 4, 1))
    actual = reference.attention(x, x, x, left_window_size=1, right_window_size=0)
    assert (actual["weights"][0, 0] > 0).tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [False, True, True, False],
        [False, False, True, True],
    ]


def test_a_row_with_all_keys_masked_is_zero():
    x = np.ones((1, 1, 2, 3))
    actual = reference.attention(x, x, x, attn_mask=np.array([[True, False], [False, False]]))
    assert actual["weights"].tolist() == [[[[1, 0], [0, 0]]]]
    assert actual["output"].tolist() == [[[[1, 1, 1], [0, 0, 0]]]]


def test_key_lengths_and_past_exclude_each_other():
    x = np.ones((1, 1, 1, 1))
    with pytest.raises(ValueError, match="exclude"):
        reference.attention(x, x, x, nonpad_kv_seqlen=[1], past_key=x, past_value=x)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("option", ["plain", "is_causal", "boolean mask", "float mask"])
def test_equals_torch(kv_heads, option):
    torch.manual_seed(kv_heads)
    shapes = (6, 5, 8), (kv_heads, 7, 8), (kv_heads, 7, 9)
    query, key, value = (torch.randn(2, *shape, dtype=torch.float64) for shape in shapes)
    options = {
        "plain": {},
        "is_causal": {"is_causal": True},
        "boolean mask": {"attn_mask": torch.rand(5, 7) < 0.8},
        "float mask": {"attn_mask": torch.randn(2, 1, 5, 7, dtype=torch.float64)},
    }[option]
    truth = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options, enable_gqa=True)
    actual = reference.attention(
        query.numpy(), key.numpy(), value.numpy(), **{k: np.asarray(v) for k, v in options.items()}
    )
    np.testing.assert_allclose(actual["output"], truth.numpy(), rtol=1e-12, atol=1e-14)


def test_multi_head_equals_torch():
    torch.manual_seed(0)
    truth = torch.nn.MultiheadAttention(24, 4, kdim=10, vdim=14, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(truth.in_proj_bias)
    torch.nn.init.normal_(truth.out_proj.bias)
    query, key, value = (torch.randn(2, *shape, dtype=torch.float64) for shape in ((5, 24), (7, 10), (7, 14)))
    with torch.no_grad():
        output, weights = truth(query, key, value, average_attn_weights=False)
    biases = truth.in_proj_bias.detach().chunk(3)
    state = {"out_proj.weight": truth.out_proj.weight.detach(), "out_proj.bias": truth.out_proj.bias.detach()}
    for letter, bias in zip("qkv", biases, strict=True):
        state |= {
            f"{letter}_proj.weight": getattr(truth, f"{letter}_proj_weight").detach(),
            f"{letter}_proj.bias": bias,
        }
    actual = reference.multi_head(
        {k: v.numpy() for k, v in state.items()}, 4, 4, query.numpy(), key.numpy(), value.numpy()
    )
    np.testing.assert_allclose(actual["output"], output.numpy(), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(actual["weights"], weights.numpy(), rtol=1e-12)
