"""Blocks and reference against other implementations: torch's modules, ONNX's evaluator."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from export.weights.naming import own_names
from models import reference
from models.multi_head import MultiHead, MultiHeadConfig
from models.transformer import Transformer, TransformerConfig

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def filled(module):
    """The module with random weights, in float64."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module.double().eval()


def loaded(module, source):
    """Our module with the weights of ``source``, renamed as in an export."""
    module.load_state_dict(own_names(source.state_dict()).tensors)
    return module.double().eval()


@pytest.mark.parametrize("widths", [(24, 24), (10, 14)])
@pytest.mark.parametrize("bias", [True, False])
def test_multi_head_equals_torch(widths, bias):
    kdim, vdim = widths
    truth = filled(torch.nn.MultiheadAttention(24, 4, kdim=kdim, vdim=vdim, bias=bias, batch_first=True))
    ours = loaded(MultiHead(MultiHeadConfig(24, 4, kdim=kdim, vdim=vdim, bias=bias)).double(), truth)
    query, key, value = (torch.randn(2, *shape, dtype=torch.float64) for shape in ((5, 24), (7, kdim), (7, vdim)))
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    mask = torch.randn(5, 7, dtype=torch.float64)
    with torch.no_grad():
        output, weights = truth(
            query, key, value, attn_mask=mask, key_padding_mask=torch.where(padding, -torch.inf, 0.0).double(),
            average_attn_weights=False,
        )  # fmt: skip
        actual = ours(query, key, value, attn_mask=mask, nonpad_kv_seqlen=torch.tensor([7, 4]))
    torch.testing.assert_close(actual.output, output, **CLOSE)
    torch.testing.assert_close(actual.weights, weights, **CLOSE)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_equals_torch(norm, activation):
    layer = torch.nn.TransformerEncoderLayer(
        16, 4, 24, activation=activation, norm_first=norm == "pre", batch_first=True
    )
    final = torch.nn.LayerNorm(16) if norm == "pre" else None
    stack = filled(torch.nn.TransformerEncoder(layer, 3, norm=final, enable_nested_tensor=False))
    config = TransformerConfig(16, 4, 3, 24, norm=norm, activation=activation, final_norm=norm == "pre")
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    causal = torch.full((6, 6), -torch.inf, dtype=torch.float64).triu(1)
    with torch.no_grad():
        ours = loaded(Transformer(config, is_causal=False).double(), stack)
        truth = stack(x, src_key_padding_mask=torch.where(padding, -torch.inf, 0.0).double())
        actual = ours(x=x, nonpad_kv_seqlen=torch.tensor([6, 4]))
        torch.testing.assert_close(actual.output, truth, **CLOSE)
        decoder = loaded(Transformer(config, is_causal=True).double(), stack)
        torch.testing.assert_close(decoder(x=x).output, stack(x, mask=causal), **CLOSE)


def test_decoding_token_by_token_equals_the_whole():
    config = TransformerConfig(16, 2, 3, 24, vocab_size=11, max_positions=9, norm="pre", final_norm=True)
    decoder = filled(Transformer(config, is_causal=True))
    ids = torch.randint(0, 11, (2, 9))
    with torch.no_grad():
        whole = decoder(ids)
        past = {}
        for t in range(9):
            step = decoder(ids[:, t : t + 1], **past)
            past = {"past_key": step.present_key, "past_value": step.present_value}
            torch.testing.assert_close(step.output[:, 0], whole.output[:, t], **CLOSE)
            torch.testing.assert_close(step.weights[..., 0, :], whole.weights[..., t, : t + 1], **CLOSE)
    torch.testing.assert_close(past["past_key"], whole.present_key, **CLOSE)


RNG = np.random.default_rng(0)
MASK = RNG.standard_normal((2, 1, 5, 7)).astype(np.float32)
PAST = {name: RNG.standard_normal((2, 3, 3, d)).astype(np.float32) for name, d in (("past_key", 8), ("past_value", 4))}
ONNX_CASES = {  # attributes of the operator, and its optional inputs
    "plain": ({}, {}),
    "scale": ({"scale": 0.3}, {}),
    "softcap": ({"softcap": 1.5}, {}),
    "causal": ({"is_causal": 1}, {}),
    "boolean mask": ({}, {"attn_mask": MASK[0, 0] < 0.8}),
    "float mask": ({}, {"attn_mask": MASK}),
    "past": ({}, PAST),
    "past causal": ({"is_causal": 1}, PAST),
    "nonpad": ({}, {"nonpad_kv_seqlen": np.array([7, 4])}),
    "nonpad mask": ({}, {"nonpad_kv_seqlen": np.array([7, 4]), "attn_mask": MASK}),
}


@pytest.mark.parametrize(("attributes", "options"), ONNX_CASES.values(), ids=ONNX_CASES.keys())
def test_onnx_attention_operator(attributes, options):
    rng = np.random.default_rng(0)
    shapes = (2, 6, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in zip("QKV", shapes, strict=True)}
    tensors, given = [*given.values()], given | options
    order = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
    names = [name if name in given else "" for name in order]
    node = helper.make_node("Attention", names, ["Y", "", "", "S"], qk_matmul_output_mode=3, **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in given.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in "YS"]
    graph = helper.make_graph([node], "attention", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    onnx.checker.check_model(model)
    output, weights = ReferenceEvaluator(model).run(["Y", "S"], given)
    actual = reference.attention(*tensors, **options, **attributes)
    np.testing.assert_allclose(actual["output"], output, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(actual["weights"], weights, rtol=1e-4, atol=2e-6)
