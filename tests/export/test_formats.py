"""Checkpoint files: damaged ones, and errors about formats that are not supported."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from export.__main__ import main
from export.checkpoint import CheckpointError, load


def refused(text):
    return pytest.raises(CheckpointError, match=re.escape(text))


@pytest.mark.parametrize("name", ["m.h5", "m.weights.h5", "m.keras", "m.npz", "m.onnx", "m.gguf", "config.json"])
def test_a_format_that_is_not_supported(name, tmp_path, capsys):
    (tmp_path / name).write_bytes(b"\x89HDF")
    assert main(["multi_head", "--name", "mine", "--weights", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert "heed export takes .safetensors, a torch state dict (.pt, .pth, .bin)" in error
    assert ("safetensors.numpy.save_file" in error) == name.endswith((".h5", ".keras", ".npz"))


def conversion(path):
    """The Python code in the error about ``path``."""
    with pytest.raises(CheckpointError) as info:
        load(path)
    return str(info.value).partition("in Python: ")[2].partition(";")[0]


def test_the_conversion_from_npz_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arrays = {"q_proj.weight": np.arange(6, dtype=np.float32).reshape(2, 3).T}
    np.savez("m.npz", **arrays)
    script = f"import numpy, safetensors.numpy\n{conversion(tmp_path / 'm.npz')}"
    subprocess.run([sys.executable, "-c", script], check=True)
    converted = load(tmp_path / "weights.safetensors").tensors
    np.testing.assert_array_equal(converted["q_proj.weight"], arrays["q_proj.weight"])


@pytest.mark.skipif(not os.environ.get("HEED_TEST_FAMILIES"), reason="Keras takes seconds; make test-families runs it")
def test_the_conversion_from_keras_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.keras").touch()
    script = f"""
import numpy, keras, safetensors.numpy
x = keras.Input((5, 8))
model = keras.Model(x, keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x))
model.save("m.keras")
numpy.save("kernel.npy", keras.ops.convert_to_numpy(model.get_layer("attention").query_dense.kernel))
{conversion(tmp_path / "m.keras")}
"""
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    tensors = load(tmp_path / "weights.safetensors").tensors
    np.testing.assert_array_equal(tensors["attention/query/kernel"], np.load("kernel.npy"))


DAMAGED = {
    "a shard is gone": ({"a": "one.safetensors", "b": "two.safetensors"}, "not in its folder: two.safetensors"),
    "outside": ({"a": "../one.safetensors"}, "names files outside its folder: ../one.safetensors"),
    "a tensor is gone": ({"a": "one.safetensors", "b": "one.safetensors"}, "in none of its shards: b"),
    "no map": ({}, 'has no "weight_map"'),
    "numbers": ({"a": 1}, 'has no "weight_map"'),
}


@pytest.mark.parametrize(("weight_map", "expected"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_index(weight_map, expected, tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with refused(expected):
        load(tmp_path / "model.safetensors.index.json")


def test_damaged_files(tmp_path):
    (tmp_path / "m.safetensors").write_bytes(b"rubbish")
    with refused("cannot be read as safetensors"):
        load(tmp_path / "m.safetensors")
    torch.save({"state_dict": 3}, tmp_path / "m.pt")
    with refused("is no state dict"):
        load(tmp_path / "m.pt")
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{")
    with refused("config.json is not JSON"):
        load(tmp_path)
    with refused("needs config.json, and model.safetensors or"):
        load(tmp_path.parent)
