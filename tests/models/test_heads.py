"""What each head contributes: shares that sum to the output, masks of heads, and weights by norm."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import reference
from models.catalogue import BLOCKS
from models.learned import arrays
from models.multi_head import MultiHead, MultiHeadConfig

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


@st.composite
def modules(draw):
    """A module of one input in float64, with random sizes and weights."""
    kv_heads = draw(st.integers(1, 3))
    config = MultiHeadConfig(
        d_model=draw(st.integers(1, 12)),
        num_heads=kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=kv_heads,
        d_k=draw(st.integers(1, 5)),
        d_v=draw(st.integers(1, 5)),
        d_out=draw(st.integers(1, 9)),
        bias=draw(st.booleans()),
        inputs="x",
    )
    torch.manual_seed(draw(st.integers(0, 1000)))
    return MultiHead(config).double().requires_grad_(False)


@given(module=modules(), batch=st.integers(1, 3), m=st.integers(1, 6), is_masked=st.booleans())
def test_shares_and_the_bias_sum_to_the_output(module, batch, m, is_masked):
    heads = module.config.num_heads
    x = torch.randn(batch, m, module.config.d_model, dtype=torch.float64)
    mask = {"head_mask": torch.randn(batch, heads, dtype=torch.float64)} if is_masked else {}
    attended = module(x=x, **mask)
    bias = module.out_proj.bias if module.config.bias else 0
    torch.testing.assert_close(attended.head_share.sum(1) + bias, attended.output, **CLOSE)
    assert attended.head_output.shape == (batch, heads, m, module.config.d_v)


@given(module=modules(), m=st.integers(1, 6), data=st.data())
def test_a_removed_head_is_one_without_its_rows_of_the_projection(module, m, data):
    config = module.config
    head = data.draw(st.integers(0, config.num_heads - 1))
    x = torch.randn(2, m, config.d_model, dtype=torch.float64)
    mask = torch.ones(1, config.num_heads, dtype=torch.float64)
    mask[0, head] = 0
    masked = module(x=x, head_mask=mask)
    module.out_proj.weight[:, head * config.d_v : (head + 1) * config.d_v] = 0
    without = module(x=x)
    torch.testing.assert_close(masked.output, without.output, **CLOSE)
    assert not masked.weights[:, head].any()
    others = [index for index in range(config.num_heads) if index != head]
    assert torch.equal(masked.weights[:, others], without.weights[:, others])


@given(module=modules(), m=st.integers(1, 6))
def test_weights_by_norm_are_the_lengths_of_the_terms_of_the_output(module, m):
    """The vectors a f(x) of all keys and heads sum to the output without its bias, and these are their lengths."""
    config = module.config
    attended = module(x=torch.randn(2, m, config.d_model, dtype=torch.float64))
    matrix = module.out_proj.weight.T.reshape(config.num_heads, config.d_v, config.d_out)
    value = attended.present_value.repeat_interleave(config.num_heads // config.num_kv_heads, 1)
    terms = torch.einsum("bhmn,bhne,hec->bhmnc", attended.weights, value, matrix)
    bias = module.out_proj.bias if config.bias else 0
    torch.testing.assert_close(terms.sum((1, 3)) + bias, attended.output, **CLOSE)
    torch.testing.assert_close(attended.weights_by_norm, terms.norm(dim=-1), **CLOSE)


@pytest.mark.parametrize("magnitude", [1e-25, 1e25])
def test_norms_of_vectors_whose_squares_overflow_or_underflow(magnitude):
    module = MultiHead(MultiHeadConfig(8, 2, bias=False, inputs="x")).requires_grad_(False)
    module.v_proj.weight *= magnitude
    x = torch.randn(1, 3, 8)
    exact = reference.multi_head(arrays(module), 2, 2, x=x.numpy())["weights_by_norm"]
    np.testing.assert_allclose(module(x=x).weights_by_norm, exact, rtol=1e-5)


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_stack_without_a_head_and_its_hidden_states(name):
    """They are what each layer takes, and the output."""
    module = BLOCKS[name].build().double().requires_grad_(False)
    ids, states = torch.tensor([[3, 1, 4, 1, 5]]), []
    for layer in module.layers:
        layer.register_forward_pre_hook(lambda _layer, given: states.append(given[0]))
    mask = torch.ones(2, 4, dtype=torch.float64)
    mask[1, 2] = 0
    masked = module(input_ids=ids, head_mask=mask)
    torch.testing.assert_close(masked.hidden_states, torch.stack([*states, masked.output]), rtol=0, atol=0)
    module.layers[1].attention.out_proj.weight[:, 16:24] = 0
    torch.testing.assert_close(masked.output, module(input_ids=ids).output, **CLOSE)
    assert [bool(weights.any()) for weights in masked.weights.flatten(0, 2)] == [True] * 6 + [False, True]
