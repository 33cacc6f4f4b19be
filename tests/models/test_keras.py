"""Blocks against Keras's attention layers, and a conversion of their weights by the code in the error of an export."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from export.checkpoint import CheckpointError, load
from export.naming import mapped
from models.additive import Additive, AdditiveConfig
from models.multi_head import MultiHead, MultiHeadConfig

pytestmark = pytest.mark.extended  # Keras takes seconds
INPUTS = ("query", "key", "value")
# In a process, because Keras imports absl, whose log handler closes standard error when logging is configured.
SCRIPT = """
import keras, numpy, safetensors.numpy
rng = numpy.random.default_rng(0)
query, key, value = (rng.standard_normal(shape, numpy.float32) for shape in ((2, 5, 8), (2, 7, 8), (2, 7, 3)))
additive = keras.layers.AdditiveAttention()
output, weights = additive([query, value, key], return_attention_scores=True)
inputs = [keras.Input(x.shape[1:]) for x in (query, value, key)]
layer = keras.layers.MultiHeadAttention(num_heads=3, key_dim=4, value_dim=6, output_shape=11, name="attention")
model = keras.Model(inputs, layer(*inputs, return_attention_scores=True))
for variable in model.weights:
    variable.assign(rng.standard_normal(variable.shape, numpy.float32))
outputs, scores = model([query, value, key])
model.save("m.keras")
CONVERSION
arrays = {"query": query, "key": key, "value": value, "scale": additive.scale, "additive.output": output,
          "additive.weights": weights, "multi_head.output": outputs, "multi_head.weights": scores}
numpy.savez("arrays.npz", **{name: keras.ops.convert_to_numpy(x) for name, x in arrays.items()})
"""


@pytest.fixture(scope="session")
def folder(once):
    """Where a Keras model was converted; ``arrays.npz`` has inputs and outputs of its layers."""

    def fill(folder):
        folder.mkdir()
        (folder / "m.keras").touch()
        with pytest.raises(CheckpointError) as info:
            load(folder / "m.keras")
        code = str(info.value).partition("in Python: ")[2].partition(";")[0]
        command = [sys.executable, "-c", SCRIPT.replace("CONVERSION", code)]
        subprocess.run(command, check=True, cwd=folder, env=os.environ | {"KERAS_BACKEND": "torch"})

    return once("keras", fill)


def assert_equal(module, folder, layer):
    arrays = np.load(folder / "arrays.npz")
    with torch.no_grad():
        actual = module(*(torch.tensor(arrays[name]) for name in INPUTS))
    np.testing.assert_allclose(actual.output, arrays[f"{layer}.output"], rtol=1e-4, atol=1e-5)
    weights = actual.weights.reshape(arrays[f"{layer}.weights"].shape)
    np.testing.assert_allclose(weights, arrays[f"{layer}.weights"], rtol=1e-4, atol=1e-6)


def test_additive_attention(folder):
    """Keras adds query and key without projections: our block with identity matrices; Keras's scale is our v."""
    ours = Additive(AdditiveConfig(8, 8, 8, 3))
    scale = torch.tensor(np.load(folder / "arrays.npz")["scale"]).reshape(1, -1)
    ours.load_state_dict({"q_proj.weight": torch.eye(8), "k_proj.weight": torch.eye(8), "v.weight": scale})
    assert_equal(ours, folder, "additive")


def test_multi_head_attention(folder, tmp_path):
    """With a mapping file, as for ``heed export --map``: kernels [in, heads, d] and [heads, d, out]."""
    mapping = {}
    for ours, theirs in {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "attention_output"}.items():
        mapping[f"{ours}.weight"] = {"from": f"attention/{theirs}/kernel", "transpose": True}
        mapping[f"{ours}.bias"] = f"attention/{theirs}/bias"
    (tmp_path / "map.json").write_text(json.dumps(mapping))
    block = MultiHead(MultiHeadConfig(8, 3, kdim=8, vdim=3, d_k=4, d_v=6, d_out=11))
    block.load_state_dict(mapped(load(folder / "weights.safetensors").tensors, tmp_path / "map.json").tensors)
    assert_equal(block, folder, "multi_head")
