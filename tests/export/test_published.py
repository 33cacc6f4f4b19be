"""Checkpoints in published formats: equal to their models in float64; and errors where sources contradict."""

import json
import os
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from export.__main__ import main
from export.checkpoint import CheckpointError, load
from export.family import family_of, from_checkpoint
from export.naming import mapped, own_names
from export.verification import session

os.environ["HF_HUB_OFFLINE"] = "1"
SIZES = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "vocab_size": 30,
    "max_position_embeddings": 20,
}
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 1, 1, 1]])  # the second row is padded with 1
LENGTHS = (6, 3)


def refused(text):
    return pytest.raises(CheckpointError, match=re.escape(text))


def run(*arguments):
    return main([str(argument) for argument in arguments])


def imported(kind, path, prefix=None, mapping=None, **settings):
    """The block with the weights of ``path``, not exported."""
    checkpoint = load(path)
    starts = family_of(kind).starts
    named = mapped(checkpoint.tensors, mapping, prefix) if mapping else own_names(checkpoint.tensors, starts, prefix)
    return from_checkpoint(kind, "mine", checkpoint, named, {key: str(value) for key, value in settings.items()})


def reference(block, **inputs):
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    return block.reference(block.build(), arrays, np.float64)


def transformer(name, **config):
    """A small model of transformers with random weights."""
    import transformers

    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    config = model_class.config_class(**{**SIZES, "layer_norm_eps": 1e-3, "attn_implementation": "eager", **config})
    module = model_class(config).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def exact(module):
    """Hidden states and attention weights of IDS in float64, by the base model, with padding masked."""
    base = module.base_model.double()
    mask = torch.arange(IDS.shape[1]) < torch.tensor(LENGTHS)[:, None]
    with torch.no_grad():
        result = base(input_ids=IDS, attention_mask=mask.long(), output_attentions=True)
    return result.last_hidden_state.numpy(), torch.stack(result.attentions).numpy()


def assert_equal(actual, module, atol):
    hidden, weights = exact(module)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(actual["output"][row, :length], hidden[row, :length], atol=atol)
        np.testing.assert_allclose(actual["weights"][:, row, :, :length], weights[:, row, :, :length], atol=atol)


def tensorflow_names(state):
    """The tensors with the names of BERT's first published files."""
    for end, other in (("weight", "gamma"), ("bias", "beta")):
        state = {name.replace(f"LayerNorm.{end}", f"LayerNorm.{other}"): x for name, x in state.items()}
    return state


def tensorflow_directory(module, folder):
    module.save_pretrained(folder)
    save_file(tensorflow_names(load_file(folder / "model.safetensors")), folder / "model.safetensors")


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
    "gamma and beta": ("BertModel", tensorflow_directory),
    "a classifier": ("BertForSequenceClassification", lambda module, folder: module.save_pretrained(folder)),
    "a classifier of tokens": ("BertForTokenClassification", tensorflow_directory),
    "question answering": ("BertForQuestionAnswering", tensorflow_directory),
    "pretraining": ("BertForPreTraining", tensorflow_directory),
    "shards": ("BertForMaskedLM", lambda module, folder: module.save_pretrained(folder, max_shard_size="2KB")),
    "shards of torch": ("BertForQuestionAnswering", torch_shards),
    "DataParallel": ("BertForSequenceClassification", parallel),
    "RoBERTa": ("RobertaModel", lambda module, folder: module.save_pretrained(folder)),
    "RoBERTa, masked": ("RobertaForMaskedLM", lambda module, folder: module.save_pretrained(folder)),
    "XLM-RoBERTa": ("XLMRobertaForSequenceClassification", torch_shards),
    "CamemBERT": ("CamembertModel", parallel),
}


@pytest.mark.parametrize(("name", "save"), SAVED.values(), ids=SAVED.keys())
def test_a_model_of_transformers(name, save, tmp_path):
    module = transformer(name)
    save(module, tmp_path)
    block = imported("encoder", tmp_path)
    assert_equal(reference(block, input_ids=IDS, nonpad_kv_seqlen=LENGTHS), module, atol=1e-9)
    offset = 0 if name.startswith("Bert") else 2
    assert block.limits == {"n": SIZES["max_position_embeddings"] - offset}


@pytest.mark.parametrize("pad_token_id", [0, 3])
def test_positions_of_a_roberta_begin_after_its_padding(pad_token_id, tmp_path):
    module = transformer("RobertaModel", pad_token_id=pad_token_id)
    module.save_pretrained(tmp_path)
    ids = IDS[:1]
    with torch.no_grad():
        hidden = module.double()(input_ids=ids).last_hidden_state
    actual = reference(imported("encoder", tmp_path), input_ids=ids)
    np.testing.assert_allclose(actual["output"], hidden, atol=1e-9)


def test_exported_graphs_agree_with_transformers(few_examples, tmp_path, capsys):
    """From the command line to ONNX Runtime: old names of tensors, and a head that is ignored."""
    module = transformer("BertForQuestionAnswering", num_hidden_layers=1)
    module.config.save_pretrained(tmp_path / "bert")
    torch.save(tensorflow_names(module.state_dict()), tmp_path / "bert" / "pytorch_model.bin")
    repository = tmp_path / "repository"
    assert run("encoder", "--name", "mine", "--weights", tmp_path / "bert", "--repository", repository) == 0
    captured = capsys.readouterr()
    assert "under 'bert.'; ignored, as they are no part of it: qa_outputs.weight, qa_outputs.bias" in captured.err
    assert "not against the model they are from" in captured.out
    served = session(repository / "mine" / "1" / "model.onnx")
    inputs = {"input_ids": IDS.numpy(), "nonpad_kv_seqlen": np.array(LENGTHS)}
    names = ["output", "weights"]
    assert_equal(dict(zip(names, served.run(names, inputs), strict=True)), module, atol=1e-5)


def test_a_causal_bert_is_a_decoder(tmp_path):
    module = transformer("BertLMHeadModel", is_decoder=True)
    module.save_pretrained(tmp_path)
    with torch.no_grad():
        hidden = module.base_model.double()(input_ids=IDS).last_hidden_state
    actual = reference(imported("decoder", tmp_path), input_ids=IDS)
    np.testing.assert_allclose(actual["output"], hidden, atol=1e-9)
    with refused("is_decoder is True by config.json, but False by the block encoder"):
        imported("encoder", tmp_path)


CONTRADICTED = {
    "heads": ("encoder", {"num_heads": 4}, "num_heads is 4 by --set, but 2 by config.json"),
    "eps": ("encoder", {"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05 by --set, but 0.001 by config.json"),
    "norm": ("encoder", {"norm": "pre"}, "norm is pre by --set, but post by the names of the tensors"),
    "layers": ("encoder", {"num_layers": 3}, "num_layers is 3 by --set, but 2 by config.json"),
    "positions": ("encoder", {"max_positions": 18}, "max_positions is 18 by --set, but 20 by the tensors"),
    "direction": ("decoder", {}, "is_decoder is False by config.json, but True by the block decoder"),
    "type": ("encoder", {"model_type": "roberta"}, "model_type is roberta by --set, but bert by config.json"),
}


@pytest.mark.parametrize(("kind", "settings", "expected"), CONTRADICTED.values(), ids=CONTRADICTED.keys())
def test_what_a_config_contradicts_is_refused(kind, settings, expected, tmp_path):
    transformer("BertModel").save_pretrained(tmp_path)
    with refused(expected):
        imported(kind, tmp_path, **settings)
    with refused(expected):  # config.json is read for the file in the folder, too
        imported(kind, tmp_path / "model.safetensors", **settings)


def test_a_config_that_contradicts_its_tensors_is_refused(tmp_path):
    transformer("BertModel").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 12}))
    with refused("num_layers is 12 by config.json, but 2 by the tensors"):
        imported("encoder", tmp_path)


def test_defaults_of_an_old_config_are_those_of_transformers(tmp_path):
    module = transformer("BertModel", layer_norm_eps=1e-12)
    module.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["layer_norm_eps"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    block = imported("encoder", tmp_path)
    assert block.config["layer_norm_eps"] == 1e-12
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refused("layer_norm_eps, model_type cannot be read off the tensors"):
        imported("encoder", tmp_path)


def test_a_file_without_config_needs_settings(tmp_path):
    """The tensors of a RoBERTa have the names of a BERT's, so the model type must be set."""
    module = transformer("RobertaModel")
    save_file(module.state_dict(), tmp_path / "alone.safetensors")
    settings = {}
    for field, value in {
        "num_heads": 2, "activation": "gelu", "layer_norm_eps": 1e-3, "model_type": "roberta", "pad_token_id": 1,
    }.items():  # fmt: skip
        with pytest.raises(CheckpointError, match=f"{field}.* cannot be read off the tensors.*--set {field}=") as info:
            imported("encoder", tmp_path / "alone.safetensors", **settings)
        assert "config.json" in str(info.value)
        settings[field] = value
    block = imported("encoder", tmp_path / "alone.safetensors", **settings)
    assert_equal(reference(block, input_ids=IDS, nonpad_kv_seqlen=LENGTHS), module, atol=1e-9)
    with refused("is_decoder cannot be read off the tensors"):
        imported("decoder", tmp_path / "alone.safetensors", **settings)


def test_a_roberta_called_a_bert_is_refused(tmp_path):
    save_file(
        {name: x for name, x in transformer("RobertaForMaskedLM").state_dict().items() if "decoder" not in name},
        tmp_path / "alone.safetensors",
    )
    settings = {"num_heads": 2, "activation": "gelu", "layer_norm_eps": 1e-3, "model_type": "bert"}
    with refused("names of the tensors are a RoBERTa's"):
        imported("encoder", tmp_path / "alone.safetensors", **settings)


STACK = {"num_heads": 2, "norm": "post", "activation": "relu", "layer_norm_eps": 1e-5}


def torch_layer(**options):
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, **options)


def test_layer_norm_eps_is_asked_for(tmp_path):
    torch.save(torch_layer().state_dict(), tmp_path / "layer.pt")
    incomplete = {key: value for key, value in STACK.items() if key != "layer_norm_eps"}
    with pytest.raises(
        CheckpointError, match="layer_norm_eps cannot be read off the tensors; say --set layer_norm_eps"
    ):
        imported("encoder", tmp_path / "layer.pt", **incomplete)
    with refused("layer_norm_eps must be from 0 to 1, got -1.0"):
        imported("encoder", tmp_path / "layer.pt", **incomplete, layer_norm_eps=-1)


@pytest.mark.parametrize("prefix", ["", "module.", "model.encoder."])
@pytest.mark.parametrize("layers", [1, 2])
def test_an_encoder_without_biases_under_a_prefix(prefix, layers, tmp_path):
    """The file also has a head, which is ignored."""
    layer = torch_layer(bias=False)
    final = torch.nn.LayerNorm(16) if layers == 2 else None
    module = torch.nn.TransformerEncoder(layer, layers, final, enable_nested_tensor=False) if layers == 2 else layer
    module = module.eval().double()
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape).double()
    state = {f"{prefix}{name}": tensor.float() for name, tensor in module.state_dict().items()}
    if prefix:
        state["head.weight"] = torch.ones(3, 16)
    save_file(state, tmp_path / "encoder.safetensors")
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    with torch.no_grad():
        truth = module(x)
    for chosen in {prefix.removesuffix(".") or None, None}:
        block = imported("encoder", tmp_path / "encoder.safetensors", chosen, **STACK)
        np.testing.assert_allclose(reference(block, x=x)["output"], truth, atol=1e-9)


def test_one_attention_of_many(tmp_path):
    module = torch.nn.TransformerEncoder(torch_layer(), 4, enable_nested_tensor=False).eval()
    for index, layer in enumerate(module.layers):
        torch.nn.init.normal_(layer.self_attn.in_proj_weight, std=1 + index)
    file = tmp_path / "encoder.safetensors"
    save_file({f"encoder.{name}": x for name, x in module.state_dict().items()}, file)
    settings = {"num_heads": 2, "add_zero_attn": False}
    with refused("choose one: --prefix encoder.layers.0.self_attn, --prefix encoder.lay"):
        imported("multi_head", file, **settings)
    with refused("no tensor's name begins with 'decoder'; there are encoder.layers.0"):
        imported("multi_head", file, "decoder", **settings)
    x = torch.randn(2, 5, 16)
    for prefix in ("encoder.layers.3.self_attn", "encoder.layers.3.self_attn."):
        actual = reference(imported("multi_head", file, prefix, **settings), query=x, key=x, value=x)
        with torch.no_grad():
            output, weights = module.layers[3].self_attn.double()(*[x.double()] * 3, average_attn_weights=False)
        np.testing.assert_allclose(actual["output"], output, atol=1e-9)
        np.testing.assert_allclose(actual["weights"], weights, atol=1e-9)


def test_an_attention_with_a_zero_key(tmp_path):
    """The file is the same with and without add_zero_attn; what the error suggests gives equal outputs."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True, add_zero_attn=True).eval()
    torch.nn.init.normal_(module.in_proj_bias)
    torch.save(module.state_dict(), tmp_path / "attention.pt")
    with refused("add_zero_attn cannot be read off the tensors"):
        imported("multi_head", tmp_path / "attention.pt", num_heads=2)
    with refused("has no add_zero_attn; say --set add_zero_attn=false, and send a past_k"):
        imported("multi_head", tmp_path / "attention.pt", num_heads=2, add_zero_attn=True)
    block = imported("multi_head", tmp_path / "attention.pt", num_heads=2, add_zero_attn=False)
    x, zero = torch.randn(2, 5, 16), np.zeros((2, 2, 1, 8))
    actual = reference(block, query=x, key=x, value=x, past_key=zero, past_value=zero)
    with torch.no_grad():
        output, weights = module.double()(*[x.double()] * 3, average_attn_weights=False)
    np.testing.assert_allclose(actual["output"], output, atol=1e-9)
    np.testing.assert_allclose(np.roll(actual["weights"], -1, axis=-1), weights, atol=1e-9)


def test_packed_projections_by_a_map(tmp_path):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(12, 3, batch_first=True).eval()
    torch.nn.init.normal_(module.in_proj_bias)
    state = module.state_dict()
    theirs = {
        "attn.qkv.kernel": state["in_proj_weight"].T.contiguous().reshape(12, 3, 3, 4),  # [in, 3, heads, d]
        "attn.qkv.bias": state["in_proj_bias"],
        "attn.out.kernel": state["out_proj.weight"].T.contiguous(),
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
    with torch.no_grad():
        output, _ = module.double()(*[x.double()] * 3)
    np.testing.assert_allclose(reference(block, query=x, key=x, value=x)["output"], output, atol=1e-9)
    (tmp_path / "map.json").write_text(json.dumps(mapping | {"in_proj_bias": "out.bias"}))
    with pytest.raises(CheckpointError, match=r"attn.out.bias \(our q_proj.bias\) has shape \[4\], expected \[12\]"):
        imported("multi_head", tmp_path / "theirs.safetensors", "attn", tmp_path / "map.json", num_heads=3)
    save_file({"in_proj_weight": torch.ones(10, 4)}, tmp_path / "odd.safetensors")
    with pytest.raises(CheckpointError, match=r"in_proj_weight has shape \[10, 4\].* a third each"):
        imported("multi_head", tmp_path / "odd.safetensors", num_heads=2)


def test_messages_have_the_names_in_the_file(tmp_path):
    module = transformer("BertForQuestionAnswering")
    state = module.state_dict()
    state["bert.encoder.layer.1.gate.weight"] = torch.ones(2)
    state["bert.encoder.layer.0.output.dense.bias"] = torch.ones(3)
    module.config.save_pretrained(tmp_path)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as info:
        imported("encoder", tmp_path)
    assert "unused bert.encoder.layer.1.gate.weight [2]" in str(info.value)
    assert "bert.encoder.layer.0.output.dense.bias (our layers.0.linear2.bias) has shape [3]" in str(info.value)
    with refused("there is no q_proj.weight; the checkpoint has bert.embeddings.Lay"):
        imported("multi_head", tmp_path)


def test_rotary_positions_are_refused(tmp_path):
    save_file({f"{name}_proj.weight": torch.ones(8, 8) for name in "qkv"}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "rope_theta": 10000.0}))
    with refused("config.json has rope_theta"):
        imported("multi_head", tmp_path, num_heads=2)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "opt", "num_attention_heads": 4}))
    with refused("num_heads is 2 by --set, but 4 by config.json"):
        imported("multi_head", tmp_path, num_heads=2)
    with refused("num_kv_heads is 1 by the block multi_query, but 4 by the tensors"):
        imported("multi_query", tmp_path)


def test_two_names_for_one_tensor(tmp_path):
    module = transformer("BertModel")
    state = {**module.state_dict(), "embeddings.LayerNorm.gamma": torch.ones(8)}
    module.config.save_pretrained(tmp_path)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"embeddings\.LayerNorm.* are both embedding_norm\.weight"):
        imported("encoder", tmp_path)
