"""Blocks and reference against other implementations: torch's modules, transformers' BERT, ONNX's evaluator."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from export.naming import own_names
from models import reference
from models.cross_decoder import CrossDecoder
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
    stack = filled(torch.nn.TransformerEncoder(layer, 3, norm=torch.nn.LayerNorm(16), enable_nested_tensor=False))
    config = TransformerConfig(16, 4, 3, 24, norm=norm, activation=activation, final_norm=True)
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


def test_one_layer_equals_torch():
    layer = filled(torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True))
    ours = loaded(Transformer(TransformerConfig(16, 2, 1, 24), is_causal=False).double(), layer)
    x = torch.randn(1, 4, 16, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x=x).output, layer(x), **CLOSE)


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


ONNX_CASES = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "causal": {"is_causal": 1},
    "boolean mask": {"attn_mask": "bool"},
    "float mask": {"attn_mask": "float"},
    "past": {"past": True},
    "past causal": {"past": True, "is_causal": 1},
    "nonpad": {"nonpad": True},
    "nonpad mask": {"nonpad": True, "attn_mask": "float"},
}


@pytest.mark.parametrize("case", ONNX_CASES.values(), ids=ONNX_CASES.keys())
def test_onnx_attention_operator(case):
    rng = np.random.default_rng(0)
    query = rng.standard_normal((2, 6, 5, 8)).astype(np.float32)
    key, value = (
        rng.standard_normal((2, 3, 7, 8)).astype(np.float32),
        rng.standard_normal((2, 3, 7, 4)).astype(np.float32),
    )
    given = {"Q": query, "K": key, "V": value}
    options = {name: option for name, option in case.items() if name in ("scale", "softcap")}
    if case.get("is_causal"):
        options["is_causal"] = True
    keys = 7
    if case.get("past"):
        keys = 10
        given["past_key"] = rng.standard_normal((2, 3, 3, 8)).astype(np.float32)
        given["past_value"] = rng.standard_normal((2, 3, 3, 4)).astype(np.float32)
        options |= {"past_key": given["past_key"], "past_value": given["past_value"]}
    if case.get("attn_mask"):
        allowed = rng.random((5, keys)) < 0.8
        mask = allowed if case["attn_mask"] == "bool" else rng.standard_normal((2, 1, 5, keys)).astype(np.float32)
        given["attn_mask"] = options["attn_mask"] = mask
    if case.get("nonpad"):
        given["nonpad_kv_seqlen"] = options["nonpad_kv_seqlen"] = np.array([7, 4], np.int64)

    order = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
    types = {
        np.dtype(np.float32): TensorProto.FLOAT,
        np.dtype(bool): TensorProto.BOOL,
        np.dtype(np.int64): TensorProto.INT64,
    }
    names = [name if name in given else "" for name in order]
    while not names[-1]:
        names.pop()
    attributes = {name: float(case[name]) for name in ("scale", "softcap") if name in case}
    node = helper.make_node(
        "Attention",
        names,
        ["Y", "", "", "S"],
        is_causal=case.get("is_causal", 0),
        qk_matmul_output_mode=3,
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, types[x.dtype], x.shape) for name, x in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in ("Y", "S")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    onnx.checker.check_model(model)
    output, weights = ReferenceEvaluator(model).run(["Y", "S"], given)
    actual = reference.attention(query, key, value, **options)
    np.testing.assert_allclose(actual["output"], output, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(actual["weights"], weights, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_decoder_with_a_memory_equals_torch(norm_first, bias):
    layer = torch.nn.TransformerDecoderLayer(24, 4, 16, batch_first=True, norm_first=norm_first, bias=bias)
    truth = filled(torch.nn.TransformerDecoder(layer, 2, torch.nn.LayerNorm(24)))
    config = TransformerConfig(24, 4, 2, 16, norm="pre" if norm_first else "post", final_norm=True, bias=bias)
    ours = CrossDecoder(config).double()
    weights = own_names(truth.state_dict()).tensors
    ours.load_state_dict(weights, strict=bias)  # without biases, our norms have some
    x, memory = (torch.randn(2, length, 24, dtype=torch.float64) for length in (5, 7))
    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    seen = []
    for part in truth.layers:
        part.multihead_attn.register_forward_pre_hook(with_weights, with_kwargs=True)
        part.multihead_attn.register_forward_hook(lambda _part, _given, got: seen.append(got[1]))
    with torch.no_grad():
        output = truth(x, memory, tgt_mask=~allowed, memory_key_padding_mask=padding)
        actual = ours(x, memory, is_causal=torch.tensor(True), memory_mask=~padding[:, None, None])
    torch.testing.assert_close(actual.output, output, **CLOSE)
    torch.testing.assert_close(actual.cross_weights, torch.stack(seen), **CLOSE)


def with_weights(_module, given, options):
    """Arguments of torch's attention that let it return the weights of each head."""
    return given, options | {"need_weights": True, "average_attn_weights": False}


def test_bert_equals_transformers():
    """A small BERT with random weights, with its names and conventions."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=12, attn_implementation="eager",
    )  # fmt: skip
    truth = filled(BertModel(config))
    ours = loaded(
        Transformer(
            TransformerConfig(
                16, 4, 2, 24, 30, 12, 2, activation="gelu", layer_norm_eps=config.layer_norm_eps, embedding_norm=True
            ),
            is_causal=False,
        ).double(),
        truth,
    )
    ids, types = torch.randint(0, 30, (2, 6)), torch.randint(0, 2, (2, 6))
    with torch.no_grad():
        expected = truth(
            ids, token_type_ids=types, attention_mask=torch.tensor([[1] * 6, [1] * 4 + [0] * 2]),
            output_attentions=True, output_hidden_states=True,
        )  # fmt: skip
        actual = ours(ids, token_type_ids=types, nonpad_kv_seqlen=torch.tensor([6, 4]))
    torch.testing.assert_close(actual.output[0], expected.last_hidden_state[0], **CLOSE)
    torch.testing.assert_close(actual.output[1, :4], expected.last_hidden_state[1, :4], **CLOSE)
    torch.testing.assert_close(actual.weights[:, 0], torch.stack(expected.attentions)[:, 0], **CLOSE)
    torch.testing.assert_close(actual.hidden_states[:, 0], torch.stack(expected.hidden_states)[:, 0], **CLOSE)
