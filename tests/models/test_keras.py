"""Keras's attention layers as truth."""

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
    """By the name of a layer: its inputs, its own weights, and its answer."""

    def fill(folder: Path) -> None:
        folder.mkdir()
        command = [sys.executable, "-m", "tests.models.keras_layers", str(folder / "layers.npz")]
        subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"KERAS_BACKEND": "torch"})

    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(once("keras", fill) / "layers.npz") as file:
        for name, array in file.items():
            layer, _, tensor = name.partition(".")
            found.setdefault(layer, {})[tensor] = array
    return found


def inputs(layer):
    return [torch.tensor(layer[name]) for name in ("query", "key", "value")]


def test_attention(layers):
    layer = layers["attention"]
    query, key, value = (layer[name][:, None] for name in ("query", "key", "value"))
    found = reference.attention(query, key, value, scale=1.0, nonpad_kv_seqlen=np.array([7, 4]))
    np.testing.assert_allclose(found["output"][:, 0], layer["output"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["weights"][:, 0], layer["weights"], rtol=1e-4, atol=1e-6)


def test_additive_attention(layers):
    """Keras adds query and key as they are: our block with identities for W_q and W_k; its scale is our v."""
    layer = layers["additive_attention"]
    ours = Additive(AdditiveConfig(8, 8, 8, 3))
    scale = torch.tensor(layer["scale"]).reshape(1, -1)
    identity = torch.eye(8)
    ours.load_state_dict({"q_proj.weight": identity, "k_proj.weight": identity, "v.weight": scale})
    with torch.no_grad():
        found = ours(*inputs(layer))
    np.testing.assert_allclose(found.output, layer["output"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.weights[:, 0], layer["weights"], rtol=1e-4, atol=1e-6)


def test_multi_head_attention(layers, tmp_path):
    """Through the mapping file, as a user would import it: kernels [in, heads, d] and [heads, d, out]."""
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
        found = block(*inputs(layer))
    np.testing.assert_allclose(found.output, layer["output"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.weights, layer["weights"], rtol=1e-4, atol=1e-6)
