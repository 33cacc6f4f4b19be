"""Rotary embeddings, linear biases, sinks and documents, by independent implementations and by hand."""

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from transformers import AutoConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from models.catalogue import BLOCKS
from models.examples import OPTIONS, draw

BLOCK = BLOCKS["scaled_dot_product"]
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "m": 5, "n": 5, "past": 0, "d_k": 8, "d_v": 6}


def refer(**inputs):
    return BLOCK.reference(BLOCK.build(), inputs, np.float64)


def drawn(**more):
    return draw(BLOCK, SIZES, OPTIONS["plain"]) | more


def test_grouped_queries_with_rope_are_the_attention_of_llama():
    config = AutoConfig.for_model(
        "llama", hidden_size=64, num_attention_heads=8, num_key_value_heads=2, rope_theta=500.0, attention_bias=False
    )
    config._attn_implementation = "eager"
    theirs = LlamaAttention(config, 0).eval()
    module = BLOCKS["grouped_query"].build()
    theirs.load_state_dict({name.replace("out_", "o_"): x for name, x in module.state_dict().items()})
    x = torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(0))
    causal = torch.triu(torch.full((6, 6), -torch.inf), 1)[None, None]
    with torch.no_grad():
        output, weights = theirs(x, LlamaRotaryEmbedding(config)(x, torch.arange(6)[None]), causal)
    inputs = {"x": x.numpy(), "rope_theta": 500.0, "is_causal": True}
    actual = BLOCKS["grouped_query"].reference(module, inputs, np.float64)
    np.testing.assert_allclose(actual["output"], output, atol=1e-6)
    np.testing.assert_allclose(actual["weights"], weights, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_is_that_of_the_onnx_operator(interleaved):
    """RotaryEmbedding of opset 23, as a user of its Attention calls it, on queries and new keys."""
    inputs, positions = drawn(), np.array([[3, 0, 7, 100, 4], [1, 2, 3, 4, 5]])
    angles = np.arange(101)[:, None] * 100.0 ** (-np.arange(4) / 4)
    operator = f"RotaryEmbedding<interleaved={int(interleaved)}>(x, cos, sin, positions)"
    graph = f"rope (float x, float cos, float sin, int64 positions) => (float y) {{ y = {operator} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> {graph}')
    given = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32), "positions": positions}
    query, key = (ReferenceEvaluator(model).run(None, {"x": inputs[x], **given})[0] for x in ("query", "key"))
    options = {"rope_theta": 100.0, "rope_interleaved": interleaved}
    rotated = refer(**inputs, **options, query_positions=positions, key_positions=positions)
    np.testing.assert_allclose(rotated["present_key"], key, atol=1e-5)
    expected = refer(**inputs | {"query": query, "key": key})
    np.testing.assert_allclose(rotated["scores"], expected["scores"], atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_last_feature_of_an_odd_d_k_is_not_rotated(interleaved):
    """The others are rotated as if they were all: the divisor in the exponent is d_k - 1."""
    inputs, options = drawn(), {"rope_theta": 100.0, "rope_interleaved": interleaved}
    key = inputs["key"]
    even = refer(**inputs, **options)["present_key"]
    odd = {name: np.concatenate([inputs[name], inputs[name][..., :1]], -1) for name in ("query", "key")}
    rotated = refer(**inputs | odd, **options)["present_key"]
    np.testing.assert_array_equal(rotated[..., :-1], even)
    np.testing.assert_array_equal(rotated[..., -1], key[..., 0])


def test_rope_depends_on_distances_alone():
    inputs = drawn(rope_theta=100.0)
    shifted = refer(**inputs, query_positions=np.arange(5)[None] + 90, key_positions=np.arange(5)[None] + 90)
    np.testing.assert_allclose(shifted["scores"], refer(**inputs)["scores"], atol=1e-9)


@pytest.mark.parametrize("option", ["rope", "alibi", "rope_positions", "sinks"])
def test_decoding_with_a_past_equals_the_whole(option):
    inputs = draw(BLOCK, SIZES, OPTIONS[option]) | {"is_causal": True}
    inputs.pop("key_positions", None)
    inputs.pop("query_positions", None)
    whole = refer(**inputs)
    past = {}
    for i in range(5):
        step = {name: x[:, :, i : i + 1] if name in ("query", "key", "value") else x for name, x in inputs.items()}
        actual = refer(**step, **past)
        past = {"past_key": actual["present_key"], "past_value": actual["present_value"]}
        np.testing.assert_allclose(actual["output"], whole["output"][:, :, i : i + 1], atol=1e-12)
    np.testing.assert_allclose(past["past_key"], whole["present_key"], atol=1e-12)


def test_alibi_is_that_of_bloom():
    """Under a causal mask bloom's bias, slope * j, differs by a constant of each row: the weights are the same."""
    inputs = drawn(is_causal=True)
    bias = build_alibi_tensor(torch.ones(2, 5), 4, torch.float32).reshape(2, 4, 1, 5).numpy()
    slopes = bias[0, :, 0, 1]
    weights = refer(**inputs, alibi_slopes=slopes)["weights"]
    np.testing.assert_allclose(weights, refer(**inputs, attn_mask=bias)["weights"], atol=1e-6)


def test_sinks_are_those_of_gpt_oss():
    inputs, sinks = drawn(), np.array([0.5, -1.0, 2.0, 0.0], np.float32)
    module = torch.nn.Module()
    module.sinks, module.num_key_value_groups, module.training = torch.tensor(sinks), 2, False
    q, k, v = (torch.tensor(inputs[name]) for name in ("query", "key", "value"))
    output, weights = eager_attention_forward(module, q, k, v, None, scaling=8**-0.5)
    actual = refer(**inputs, sinks=sinks)
    np.testing.assert_allclose(actual["weights"], weights, atol=1e-6)
    np.testing.assert_allclose(actual["output"], output.transpose(1, 2), atol=1e-6)
    assert (actual["weights"].sum(-1) < 1).all()


def test_a_sink_counts_in_lse_and_alone_where_all_keys_are_masked():
    inputs = drawn(sinks=np.array([1.0, 2.0, 3.0, 4.0]), attn_mask=np.full((1, 1, 1, 5), -np.inf))
    actual = refer(**inputs)
    assert not actual["weights"].any()
    np.testing.assert_array_equal(actual["lse"][0, :, 0], [1, 2, 3, 4])


def test_documents_are_a_mask():
    ids = np.array([[0, 0, 1, 1, 1], [5, 4, 5, 4, 5]])
    mask = ids[:, None, :, None] == ids[:, None, None, :]
    by_ids = refer(**drawn(), query_document_ids=ids, document_ids=ids, is_causal=True)
    by_mask = refer(**drawn(), attn_mask=mask, is_causal=True)
    for name, expected in by_mask.items():
        np.testing.assert_array_equal(by_ids[name], expected)


def test_a_bias_is_added_before_softcap_and_a_mask_after():
    inputs = {name: np.ones((1, 1, 1, 1)) for name in ("query", "key", "value")} | {"softcap": 2.0}
    bias = np.full((1, 1, 1, 1), 3.0)
    assert refer(**inputs, attn_bias=bias)["scores"].item() == pytest.approx(2 * np.tanh(4 / 2))
    assert refer(**inputs, attn_mask=bias)["scores"].item() == pytest.approx(2 * np.tanh(1 / 2) + 3)
