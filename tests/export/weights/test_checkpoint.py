"""Errors about wrong checkpoints, settings and formats say what to do; nothing is run that a file contains."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from export.verification.sessions import session
from export.weights.checkpoint import CheckpointError, load
from tests.export.weights.importing import attention_module, bert_folder, imported, reference, refused, run, transformer

FOUR = {"num_heads": 4}
EIGHT = {f"{name}_proj.weight": torch.ones(8, 8) for name in "qkv"}
STACK = {"num_heads": 2, "norm": "post", "activation": "relu"}
ROBERTA = {"num_heads": 2, "activation": "gelu", "layer_norm_eps": 1e-3, "model_type": "roberta", "pad_token_id": 1}

ATTENTION = {
    "no setting": ({}, "num_heads cannot be inferred from the tensors; pass --set num_heads=..."),
    "heads that do not divide": (FOUR | {"num_heads": 5}, "has 24 rows, which is not a multiple of num_heads 5"),
    "no heads": (FOUR | {"num_heads": 0}, "not a multiple of num_heads 0"),
    "no such setting": (FOUR | {"heads": 3}, "--set heads: unknown setting"),
    "no number": ({"num_heads": "four"}, "num_heads should be int, got 'four'"),
    "a choice": ({"num_heads": 4, "inputs": "z"}, "inputs should be query, key, value, x, x, memory"),
}
BERT = {  # changes of config.json, what is imported, and the error
    "heads": ({}, "encoder", {"num_heads": 4}, "num_heads is 4 by --set, but 2 by config.json"),
    "eps": ({}, "encoder", {"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05 by --set, but 0.001 by config.json"),
    "norm": ({}, "encoder", {"norm": "pre"}, "norm is pre by --set, but post by the names of the tensors"),
    "layers": ({}, "encoder", {"num_layers": 3}, "num_layers is 3 by --set, but 2 by config.json"),
    "positions": ({}, "encoder", {"max_positions": 18}, "max_positions is 18 by --set, but 20 by the tensors"),
    "direction": ({}, "decoder", {}, "is_decoder is False by config.json, but True by the block decoder"),
    "type": ({}, "encoder", {"model_type": "roberta"}, "model_type is roberta by --set, but bert by config.json"),
    "tensors": ({"num_hidden_layers": 12}, "encoder", {}, "num_layers is 12 by config.json, but 2 by the tensors"),
    "another model": ({"model_type": "electra"}, "encoder", {}, "camembert; heed export hf exports others"),
    "no type": (
        {"model_type": None, "layer_norm_eps": None},
        "encoder",
        {},
        "layer_norm_eps, model_type cannot be inferred",
    ),
    "another block": ({}, "multi_head", {}, "and 27 more; to export the whole model: heed export hf "),
    "no weights": ({}, "cosine", {}, "cosine has no weights to import; these have: projected"),
}
LLAMA, OPT = {"model_type": "llama", "rope_theta": 10000.0}, {"model_type": "opt", "num_attention_heads": 4}
TENSORS = {  # config.json, what is imported, and the error
    "rotary positions": (LLAMA, "multi_head", {"num_heads": 2}, "config.json has rope_theta"),
    "heads": (OPT, "multi_head", {"num_heads": 2}, "num_heads is 2 by --set, but 4 by config.json"),
    "heads of keys": (OPT, "multi_query", {}, "num_kv_heads is 1 by the block multi_query, but 4 by the tensors"),
}


@pytest.mark.parametrize(("settings", "expected"), ATTENTION.values(), ids=ATTENTION.keys())
def test_a_wrong_setting(settings, expected, tmp_path):
    save_file(attention_module(24, 4, kdim=10, vdim=14).state_dict(), tmp_path / "attention.safetensors")
    with refused(expected):
        imported("multi_head", tmp_path / "attention.safetensors", **settings)


@pytest.mark.parametrize(("changed", "kind", "settings", "expected"), BERT.values(), ids=BERT.keys())
def test_a_config_that_contradicts(changed, kind, settings, expected, tmp_path):
    bert_folder(tmp_path, **changed)
    for path in (tmp_path, tmp_path / "model.safetensors"):  # config.json is read for the file in the folder, too
        with refused(expected):
            imported(kind, path, **settings)


@pytest.mark.parametrize(("config", "kind", "settings", "expected"), TENSORS.values(), ids=TENSORS.keys())
def test_tensors_that_a_config_contradicts(config, kind, settings, expected, tmp_path):
    save_file(EIGHT, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refused(expected):
        imported(kind, tmp_path, **settings)


def test_packed_rows_that_are_not_a_third_each(tmp_path):
    save_file({"in_proj_weight": torch.ones(10, 4)}, tmp_path / "odd.safetensors")
    with refused("in_proj_weight has shape [10, 4]; expected the rows of query, key and value, a third each"):
        imported("multi_head", tmp_path / "odd.safetensors", num_heads=2)


def test_an_error_is_a_message_and_nothing_is_written(tmp_path, capsys):
    """All tensors that do not fit are listed."""
    state = attention_module(24, 4).state_dict()
    del state["out_proj.bias"]
    save_file(state | {"gate.weight": torch.ones(3)}, tmp_path / "odd.safetensors")
    settings = ["--set", "num_heads=4", "--repository", tmp_path / "repository"]
    assert run("multi_head", "--name", "odd", "--weights", tmp_path / "odd.safetensors", *settings) == 2
    error = capsys.readouterr().err
    assert "missing out_proj.bias [24]" in error
    assert "unused gate.weight [3]" in error
    assert not (tmp_path / "repository").exists()


def test_messages_have_the_names_in_the_file(tmp_path):
    module = transformer("BertForQuestionAnswering")
    state = module.state_dict()
    state["bert.encoder.layer.1.gate.weight"] = torch.ones(2)
    state["bert.encoder.layer.0.output.dense.bias"] = torch.ones(3)
    module.config.save_pretrained(tmp_path)
    save_file(state, tmp_path / "model.safetensors")
    with refused("bert.encoder.layer.0.output.dense.bias (our layers.0.linear2.bias) has shape [3]") as info:
        imported("encoder", tmp_path)
    assert "unused bert.encoder.layer.1.gate.weight [2]" in str(info.value)


@pytest.mark.parametrize(("number", "expected"), [(np.nan, "NaN"), (np.inf, "infinity")], ids=["nan", "inf"])
def test_numbers_that_are_not_finite(number, expected, tmp_path):
    state = attention_module(8, 2).state_dict()
    state["in_proj_weight"][5, 3] = number
    save_file(state, tmp_path / "odd.safetensors")
    with refused(f"in_proj_weight contains {expected}"):
        imported("multi_head", tmp_path / "odd.safetensors", num_heads=2)


def test_the_state_dict_of_a_training_checkpoint(tmp_path):
    module = attention_module(8, 2)
    saved = {"model": module.state_dict(), "optimizer": {"state": {}, "param_groups": []}, "epoch": 3}
    torch.save(saved, tmp_path / "last.pt")
    assert load(tmp_path / "last.pt").tensors.keys() == module.state_dict().keys()
    torch.save(saved | {"ema": module.state_dict()}, tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match="has several state dicts: model, ema; save the one to export"):
        load(tmp_path / "last.pt")


def test_two_names_for_one_tensor(tmp_path):
    bert_folder(tmp_path)
    state = {**load(tmp_path).tensors, "embeddings.LayerNorm.gamma": torch.ones(8)}
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"embeddings\.LayerNorm.* are both embedding_norm\.weight"):
        imported("encoder", tmp_path)


def test_defaults_of_an_old_config_are_those_of_transformers(tmp_path):
    bert_folder(tmp_path, layer_norm_eps=None)
    assert imported("encoder", tmp_path).config["layer_norm_eps"] == 1e-12


def test_a_file_without_config_needs_settings(tmp_path):
    """The tensors of a RoBERTa have the names of a BERT's, so the model type must be set."""
    file = tmp_path / "alone.safetensors"
    state = transformer("RobertaForMaskedLM").state_dict()
    save_file({name: x for name, x in state.items() if "decoder" not in name}, file)
    settings = {}
    for field, value in ROBERTA.items():
        with pytest.raises(CheckpointError, match=f"{field}.* cannot be inferred from the.*--set {field}=") as info:
            imported("encoder", file, **settings)
        assert "config.json" in str(info.value)
        settings[field] = value
    assert imported("encoder", file, **settings).config["layer_norm_eps"] == 1e-3
    with refused("is_decoder cannot be inferred from the tensors"):
        imported("decoder", file, **settings)
    with refused("names of the tensors are a RoBERTa's"):
        imported("encoder", file, **{name: settings[name] for name in list(settings)[:3]}, model_type="bert")


def test_layer_norm_eps_is_asked_for(tmp_path):
    torch.save(torch.nn.TransformerEncoderLayer(16, 2, 24).state_dict(), tmp_path / "layer.pt")
    with refused("layer_norm_eps cannot be inferred from the tensors; pass --set layer_norm_eps"):
        imported("encoder", tmp_path / "layer.pt", **STACK)
    with refused("layer_norm_eps must be from 0 to 1, got -1.0"):
        imported("encoder", tmp_path / "layer.pt", **STACK, layer_norm_eps=-1)


WRONG_MAPPINGS = {'{"q_proj.weight": "query/kernel"}': "names query/kernel; the checkpoint has", "[1]": "not a mapping"}


@pytest.mark.parametrize(("content", "expected"), WRONG_MAPPINGS.items())
def test_a_wrong_mapping(content, expected, tmp_path):
    save_file(EIGHT, tmp_path / "a.safetensors")
    (tmp_path / "map.json").write_text(content)
    with refused(expected):
        imported("multi_head", tmp_path / "a.safetensors", mapping=tmp_path / "map.json", num_heads=4)


class Harmful:
    """Unpickling it would run a command."""

    def __reduce__(self):
        return os.system, ("touch harmed",)


def test_a_pickle_that_runs_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("evil.pt").write_bytes(pickle.dumps({"q_proj.weight": Harmful()}))
    torch.save({"q_proj.weight": Harmful()}, "evil.pth")
    for name in ("evil.pt", "evil.pth"):
        with refused("is refused"):
            load(Path(name))
    assert not Path("harmed").exists()


def test_damaged_files(tmp_path):
    (tmp_path / "m.safetensors").write_bytes(b"rubbish")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "rubbish.pt").write_bytes(b"rubbish")
    torch.save({"state_dict": 3}, tmp_path / "m.pt")
    (tmp_path / "folder").mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "folder" / "model.safetensors")
    (tmp_path / "folder" / "config.json").write_text("{")
    for name, expected in {
        "absent.pt": "no such file",
        "m.safetensors": "cannot be read as safetensors",
        "empty.pt": "cannot be read",
        "rubbish.pt": "cannot be read",
        "m.pt": "is not a state dict",
        "folder": "config.json is not JSON",
        ".": "needs config.json, and model.safetensors or",
    }.items():
        with refused(expected):
            load(tmp_path / name)


INDICES = {
    "a shard is gone": ({"a": "one.safetensors", "b": "two.safetensors"}, "not in its folder: two.safetensors"),
    "outside": ({"a": "../one.safetensors"}, "names files outside its folder: ../one.safetensors"),
    "a tensor is gone": ({"a": "one.safetensors", "b": "one.safetensors"}, "in none of its shards: b"),
    "no map": ({}, 'has no "weight_map"'),
    "numbers": ({"a": 1}, 'has no "weight_map"'),
}


@pytest.mark.parametrize(("weight_map", "expected"), INDICES.values(), ids=INDICES.keys())
def test_a_damaged_index(weight_map, expected, tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with refused(expected):
        load(tmp_path / "model.safetensors.index.json")


@pytest.mark.parametrize("name", ["m.h5", "m.weights.h5", "m.keras", "m.npz", "m.onnx", "m.gguf", "config.json"])
def test_a_format_that_is_not_supported(name, tmp_path):
    (tmp_path / name).write_bytes(b"\x89HDF")
    with refused("heed export takes .safetensors, a torch state dict (.pt, .pth, .bin)") as info:
        load(tmp_path / name)
    assert ("safetensors.numpy.save_file" in str(info.value)) == name.endswith((".h5", ".keras", ".npz"))


def converted(file, before=""):
    """The tensors that the Python code in the error about ``file`` writes, after the code ``before``."""
    with pytest.raises(CheckpointError) as info:
        load(file)
    script = (
        f"import numpy, safetensors.numpy\n{before}\n" + str(info.value).partition("in Python: ")[2].partition(";")[0]
    )
    environment = os.environ | {"KERAS_BACKEND": "torch"}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=file.parent, env=environment)
    return load(file.with_name("weights.safetensors")).tensors


def test_the_conversion_from_npz_works(tmp_path):
    arrays = {"q_proj.weight": np.arange(6, dtype=np.float32).reshape(2, 3).T}
    np.savez(tmp_path / "m.npz", **arrays)
    np.testing.assert_array_equal(converted(tmp_path / "m.npz")["q_proj.weight"], arrays["q_proj.weight"])


KERAS = """
import keras
query, value = (numpy.random.default_rng(0).standard_normal((2, n, 8), numpy.float32) for n in (5, 7))
inputs = [keras.Input(x.shape[1:]) for x in (query, value)]
layer = keras.layers.MultiHeadAttention(num_heads=3, key_dim=4, value_dim=6, output_shape=11, name="attention")
model = keras.Model(inputs, layer(*inputs, return_attention_scores=True))
model.set_weights([numpy.random.default_rng(1).standard_normal(x.shape) for x in model.get_weights()])
output, weights = (keras.ops.convert_to_numpy(x) for x in model([query, value]))
model.save("m.keras")
numpy.savez("arrays.npz", query=query, key=value, value=value, output=output, weights=weights)
"""


@pytest.mark.extended
def test_a_converted_attention_of_keras(tmp_path):
    """With a mapping of kernels [in, heads, d] and [heads, d, out]."""
    (tmp_path / "m.keras").touch()
    converted(tmp_path / "m.keras", KERAS)
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "attention_output"}
    mapping = {f"{ours}.bias": f"attention/{theirs}/bias" for ours, theirs in names.items()}
    for ours, theirs in names.items():
        mapping[f"{ours}.weight"] = {"from": f"attention/{theirs}/kernel", "transpose": True}
    (tmp_path / "map.json").write_text(json.dumps(mapping))
    block = imported(
        "multi_head", tmp_path / "weights.safetensors", mapping=tmp_path / "map.json", **FOUR | {"num_heads": 3}
    )
    with np.load(tmp_path / "arrays.npz") as file:
        arrays = dict(file)
    actual = reference(block, **{name: arrays[name] for name in ("query", "key", "value")})
    np.testing.assert_allclose(actual["output"], arrays["output"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actual["weights"], arrays["weights"], rtol=1e-4, atol=1e-6)


def test_a_checkpoint_in_half_precision(few_examples, tmp_path):
    """The weights are rounded once, to the nearest."""
    matrix = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    torch.save({"q_proj.weight": matrix}, tmp_path / "general.pt")
    given = ("--name", "mine", "--weights", tmp_path / "general.pt", "--set", "d_v=2", "--dtype", "float16")
    assert run("luong_general", *given, "--repository", tmp_path) == 0
    served = session(tmp_path / "mine" / "1" / "model.onnx")
    spec = json.loads(served.get_modelmeta().custom_metadata_map["heed"])
    assert (spec["block"], spec["dtype"]) == ("mine", "float16")
    eye = {"query": np.eye(3, dtype=np.float16)[None], "key": np.eye(4, dtype=np.float16)[None]}
    (scores,) = served.run(["scores"], eye | {"value": np.zeros((1, 4, 2), np.float16)})
    np.testing.assert_array_equal(scores[0, 0], matrix.T.numpy().astype(np.float16))
