"""Checkpoints in published formats are equal to their models in float64."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from export.verification.sessions import session
from tests.export.weights.importing import (
    SIZES,
    assert_attends_alike,
    attention_module,
    imported,
    reference,
    refused,
    run,
    transformer,
)

IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 1, 1, 1]])  # the second row is padded with 1
LENGTHS = (6, 3)
TYPES = torch.tensor([[0, 0, 1, 1, 0, 1], [1, 0, 1, 0, 0, 0]])
STACK = {"num_heads": 2, "norm": "post", "activation": "relu", "layer_norm_eps": 1e-5}


def assert_equal(actual, module, atol=1e-9):
    """Outputs by name are those of the base model for IDS and TYPES in float64, with padding masked."""
    mask = torch.arange(IDS.shape[1]) < torch.tensor(LENGTHS)[:, None]
    options = {"output_attentions": True, "output_hidden_states": True}
    with torch.no_grad():
        result = module.base_model.double()(IDS, attention_mask=mask.long(), token_type_ids=TYPES, **options)
    weights, states = torch.stack(result.attentions).numpy(), torch.stack(result.hidden_states).numpy()
    for row, length in enumerate(LENGTHS):
        output = result.last_hidden_state[row, :length]
        np.testing.assert_allclose(actual["output"][row, :length], output, atol=atol)
        np.testing.assert_allclose(actual["weights"][:, row, :, :length], weights[:, row, :, :length], atol=atol)
        np.testing.assert_allclose(actual["hidden_states"][:, row, :length], states[:, row, :length], atol=atol)


def tensorflow_names(state):
    """The tensors with the names of BERT's first published files."""
    for end, other in (("weight", "gamma"), ("bias", "beta")):
        state = {name.replace(f"LayerNorm.{end}", f"LayerNorm.{other}"): x for name, x in state.items()}
    return state


def plain(module, folder):
    module.save_pretrained(folder)


def tensorflow(module, folder):
    module.save_pretrained(folder)
    save_file(tensorflow_names(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def shards(module, folder):
    module.save_pretrained(folder, max_shard_size="2KB")


def torch_shards(module, folder):
    module.config.save_pretrained(folder)
    parts, weight_map = [{}, {}, {}], {}
    for index, (name, tensor) in enumerate(module.state_dict().items()):
        parts[index % 3][name] = tensor
        weight_map[name] = f"pytorch_model-{index % 3}.bin"
    for index, part in enumerate(parts):
        torch.save(part, folder / f"pytorch_model-{index}.bin")
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))


def parallel(module, folder):
    module.config.save_pretrained(folder)
    torch.save({f"module.{name}": x for name, x in module.state_dict().items()}, folder / "pytorch_model.bin")


SAVED = {
    "gamma and beta": ("BertModel", tensorflow, {}),
    "a classifier": ("BertForSequenceClassification", plain, {}),
    "a classifier of tokens": ("BertForTokenClassification", tensorflow, {}),
    "question answering": ("BertForQuestionAnswering", plain, {}),
    "pretraining": ("BertForPreTraining", tensorflow, {}),
    "shards": ("BertForMaskedLM", shards, {}),
    "shards of torch": ("BertForQuestionAnswering", torch_shards, {}),
    "DataParallel": ("BertForSequenceClassification", parallel, {}),
    "RoBERTa": ("RobertaModel", plain, {}),
    "RoBERTa, masked": ("RobertaForMaskedLM", plain, {}),
    "RoBERTa, padded with 0": ("RobertaModel", plain, {"pad_token_id": 0}),
    "RoBERTa, padded with 3": ("RobertaModel", plain, {"pad_token_id": 3}),
    "XLM-RoBERTa": ("XLMRobertaForSequenceClassification", torch_shards, {}),
    "CamemBERT": ("CamembertModel", parallel, {}),
}


@pytest.mark.parametrize(("name", "save", "config"), SAVED.values(), ids=SAVED.keys())
def test_a_model_of_transformers(name, save, config, tmp_path):
    module = transformer(name, **config)
    save(module, tmp_path)
    block = imported("encoder", tmp_path)
    assert_equal(reference(block, input_ids=IDS, nonpad_kv_seqlen=LENGTHS, token_type_ids=TYPES), module)
    # Positions of a RoBERTa begin after its padding.
    offset = 0 if name.startswith("Bert") else module.config.pad_token_id + 1
    assert block.limits == {"n": SIZES["max_position_embeddings"] - offset}


@pytest.mark.extended
def test_exported_graphs_agree_with_transformers(few_examples, without_fast_paths, tmp_path, capsys):
    """From the command line to ONNX Runtime: old names of tensors, a tokenizer, and a head that is ignored."""
    module = transformer("BertForQuestionAnswering", num_hidden_layers=1)
    module.config.save_pretrained(tmp_path / "bert")
    torch.save(tensorflow_names(module.state_dict()), tmp_path / "bert" / "pytorch_model.bin")
    (tmp_path / "bert" / "tokenizer.json").write_text("{}")
    assert run("encoder", "--name", "mine", "--weights", tmp_path / "bert", "--repository", tmp_path) == 0
    captured = capsys.readouterr()
    assert "under 'bert.'; ignored, not part of the block: qa_outputs.weight, qa_outputs.bias" in captured.err
    assert "mine: verified against Heed's float64 reference with these weights, not against their" in captured.out
    assert (tmp_path / "mine" / "1" / "tokenizer.json").read_text() == "{}"
    served = session(tmp_path / "mine" / "1" / "model.onnx")
    spec = json.loads(served.get_modelmeta().custom_metadata_map["heed"])
    assert spec["weights"].startswith("pytorch_model.bin sha256:")
    assert spec["config"]["num_heads"] == 2
    inputs = {"input_ids": IDS.numpy(), "nonpad_kv_seqlen": np.array(LENGTHS), "token_type_ids": TYPES.numpy()}
    names = ["output", "weights", "hidden_states"]
    assert_equal(dict(zip(names, served.run(names, inputs), strict=True)), module, atol=1e-5)


def test_a_causal_bert_is_a_decoder(tmp_path):
    module = transformer("BertLMHeadModel", is_decoder=True)
    module.save_pretrained(tmp_path)
    with torch.no_grad():
        hidden = module.base_model.double()(input_ids=IDS).last_hidden_state
    np.testing.assert_allclose(reference(imported("decoder", tmp_path), input_ids=IDS)["output"], hidden, atol=1e-9)
    with refused("is_decoder is True by config.json, but False by the block encoder"):
        imported("encoder", tmp_path)


ENCODERS = {
    "a layer": ("", 1, {"bias": False}),
    "under a prefix": ("module.", 2, {"bias": False}),
    "under two prefixes": ("model.encoder.", 2, {"bias": False}),
    "normalized first": ("", 2, {"norm_first": True, "activation": "gelu"}),
}


@pytest.mark.parametrize(("prefix", "layers", "options"), ENCODERS.values(), ids=ENCODERS.keys())
def test_an_encoder_of_torch(prefix, layers, options, tmp_path):
    """Under a prefix the file also has a head, which is ignored."""
    torch.manual_seed(0)
    module = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, **options)
    if layers > 1:
        module = torch.nn.TransformerEncoder(module, layers, torch.nn.LayerNorm(16), enable_nested_tensor=False)
    module = module.eval().double()
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape).double()
    state = {f"{prefix}{name}": tensor.float() for name, tensor in module.state_dict().items()}
    save_file(state | ({"head.weight": torch.ones(3, 16)} if prefix else {}), tmp_path / "encoder.safetensors")
    settings = STACK | ({"norm": "pre", "activation": "gelu"} if "norm_first" in options else {})
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    with torch.no_grad():
        truth = module(x)
    for chosen in {prefix.removesuffix(".") or None, None}:
        block = imported("encoder", tmp_path / "encoder.safetensors", chosen, **settings)
        np.testing.assert_allclose(reference(block, x=x)["output"], truth, atol=1e-9)


DECODERS = {
    "a layer": ("layer", {}),
    "without biases": ("decoder", {"bias": False}),
    "normalized first": ("decoder", {"norm_first": True}),
    "of a transformer": ("transformer", {}),
}


@pytest.mark.parametrize(("kind", "options"), DECODERS.values(), ids=DECODERS.keys())
def test_a_decoder_of_torch(kind, options, tmp_path):
    """A prefix chooses the decoder of an nn.Transformer."""
    torch.manual_seed(0)
    whole = module = torch.nn.TransformerDecoderLayer(16, 2, 24, batch_first=True, **options)
    if kind == "decoder":
        whole = module = torch.nn.TransformerDecoder(module, 2, torch.nn.LayerNorm(16))
    elif kind == "transformer":
        whole = torch.nn.Transformer(16, 2, 1, 2, 24, batch_first=True)
        module = whole.decoder
    torch.save(whole.state_dict(), tmp_path / "weights.pt")
    settings = STACK | {"norm": "pre" if "norm_first" in options else "post"}
    prefix = "decoder" if kind == "transformer" else None
    block = imported("cross_decoder", tmp_path / "weights.pt", prefix, **settings)
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    later = ~torch.ones(5, 5, dtype=torch.bool).tril()
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    weights = []
    for part in getattr(module, "layers", [module]):
        part.multihead_attn.register_forward_pre_hook(with_weights, with_kwargs=True)
        part.multihead_attn.register_forward_hook(lambda _part, _given, answer: weights.append(answer[1]))
    with torch.no_grad():
        output = module.double().eval()(x.double(), memory.double(), tgt_mask=later, memory_key_padding_mask=padding)
    actual = reference(block, x=x, memory=memory, is_causal=True, memory_mask=~padding[:, None, None])
    np.testing.assert_allclose(actual["output"], output, atol=1e-9)
    np.testing.assert_allclose(actual["cross_weights"], torch.stack(weights), atol=1e-9)


def with_weights(_module, given, options):
    """Arguments of torch's attention that let it return the weights of each head."""
    return given, options | {"need_weights": True, "average_attn_weights": False}


def test_one_attention_of_many(tmp_path):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    for index, part in enumerate(module.layers):
        torch.nn.init.normal_(part.self_attn.in_proj_weight, std=1 + index)
    file = tmp_path / "encoder.safetensors"
    save_file({f"encoder.{name}": x for name, x in module.state_dict().items()}, file)
    settings = {"num_heads": 2}
    with refused("choose one: --prefix encoder.layers.0.self_attn, --prefix encoder.lay"):
        imported("multi_head", file, **settings)
    with refused("no tensor's name begins with 'decoder'; there are encoder.layers.0"):
        imported("multi_head", file, "decoder", **settings)
    x = torch.randn(2, 5, 16)
    for prefix in ("encoder.layers.3.self_attn", "encoder.layers.3.self_attn."):
        actual = reference(imported("multi_head", file, prefix, **settings), query=x, key=x, value=x)
        assert_attends_alike(module.layers[3].self_attn, actual, x)


def test_an_attention_with_a_zero_key(tmp_path):
    """The file is the same with and without add_zero_attn; what the error suggests gives equal outputs."""
    module = attention_module(16, 2, add_zero_attn=True)
    torch.save(module.state_dict(), tmp_path / "attention.pt")
    with refused("does not support add_zero_attn; use --set add_zero_attn=false, and send a past_k"):
        imported("multi_head", tmp_path / "attention.pt", num_heads=2, add_zero_attn=True)
    block = imported("multi_head", tmp_path / "attention.pt", num_heads=2)
    x, zero = torch.randn(2, 5, 16), np.zeros((2, 2, 1, 8))
    actual = reference(block, query=x, key=x, value=x, past_key=zero, past_value=zero)
    assert_attends_alike(module, actual | {"weights": np.roll(actual["weights"], -1, axis=-1)}, x)


def test_packed_projections_by_a_map(tmp_path):
    module = attention_module(12, 3)
    state = module.state_dict()
    theirs = {
        "attn.qkv.kernel": state["in_proj_weight"].T.contiguous().reshape(12, 3, 3, 4),  # [in, 3, heads, d]
        "attn.qkv.bias": state["in_proj_bias"],
        "attn.out.kernel": state["out_proj.weight"].T.contiguous().reshape(3, 4, 12),  # [heads, d, out]
        "attn.out.bias": state["out_proj.bias"],
        "norm.scale": torch.ones(12),
    }
    save_file(theirs, tmp_path / "theirs.safetensors")
    mapping = {
        "in_proj_weight": {"from": "qkv.kernel", "transpose": True},
        "in_proj_bias": "qkv.bias",
        "out_proj.weight": {"from": "out.kernel", "transpose": True},
        "out_proj.bias": "out.bias",
    }
    (tmp_path / "map.json").write_text(json.dumps(mapping))
    block = imported("multi_head", tmp_path / "theirs.safetensors", "attn", tmp_path / "map.json", num_heads=3)
    x = torch.randn(2, 5, 12)
    assert_attends_alike(module, reference(block, query=x, key=x, value=x), x)
    (tmp_path / "map.json").write_text(json.dumps(mapping | {"in_proj_bias": "out.bias"}))
    with refused("attn.out.bias (our q_proj.bias) has shape [4], expected [12]"):
        imported("multi_head", tmp_path / "theirs.safetensors", "attn", tmp_path / "map.json", num_heads=3)
