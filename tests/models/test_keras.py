"""Blocks and reference against Keras's attention layers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from export.naming import mapped
from models import reference
from models.additive import Additive, AdditiveConfig
from models.multi_head import MultiHead, MultiHeadConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def layers(once) -> dict[str, dict[str, np.ndarray]]:
    """Layer name -> its inputs, learned weights and outputs."""

    def fill(folder: Path) -> None:
        folder.mkdir()
        command = [sys.executable, "-m", "tests.models.keras_layers", str(folder / "layers.npz")]
        subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"KERAS_BACKEND": "torch"})

    arrays: dict[str, dict[str, np.ndarray]] = {}
    with np.load(once("keras", fill) / "layers.npz") as file:
        for name, array in file.items():
            layer, _, tensor = name.partition(".")
            arrays.setdefault(layer, {})[tensor] = array
    return arrays


def inputs(layer):
    return [torch.tensor(layer[name]) for name in ("query", "key", "value")]


def test_attention(layers):
    layer = layers["attention"]
    query, key, value = (layer[name][:, None] for name in ("query", "key", "value"))
    actual = reference.attention(query, key, value, scale=1.0, nonpad_kv_seqlen=np.array([7, 4]))
    np.testing.assert_allclose(actual["output"][:, 0], layer["output"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actual["weights"][:, 0], layer["weights"], rtol=1e-4, atol=1e-6)


def test_additive_attention(layers):
    """Keras adds query and key without projections: our block with identity matrices; Keras's scale is our v."""
    layer = layers["additive_attention"]
    ours = Additive(AdditiveConfig(8, 8, 8, 3))
    scale = torch.tensor(layer["scale"]).reshape(1, -1)
    identity = torch.eye(8)
    ours.load_state_dict({"q_proj.weight": identity, "k_proj.weight": identity, "v.weight": scale})
    with torch.no_grad():
        actual = ours(*inputs(layer))
    np.testing.assert_allclose(actual.output, layer["output"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actual.weights[:, 0], layer["weights"], rtol=1e-4, atol=1e-6)


def test_multi_head_attention(layers, tmp_path):
    """With a mapping file, as for ``heed export --map``: kernels [in, heads, d] and [heads, d, out]."""
    layer = layers["multi_head_attention"]
    tensors = {name: torch.tensor(array) for name, array in layer.items() if "/" in name}
    mapping = {}
    for ours, theirs in {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}.items():
        mapping |= {f"{ours}.weight": {"from": f"{theirs}/kernel", "transpose": True}, f"{ours}.bias": f"{theirs}/bias"}
    file = tmp_path / "map.json"
    file.write_text(json.dumps(mapping))
    block = MultiHead(MultiHeadConfig(12, 3, kdim=10, vdim=9, d_k=4, d_v=6, d_out=11))
    block.load_state_dict(mapped(tensors, file).tensors)
    with torch.no_grad():
        actual = block(*inputs(layer))
    np.testing.assert_allclose(actual.output, layer["output"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actual.weights, layer["weights"], rtol=1e-4, atol=1e-6)
