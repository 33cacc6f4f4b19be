"""LoRA adapters of peft: the model with its adapter is exported; peft is installed in a folder of its own."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from export.__main__ import main
from tests.support.application import running
from tests.support.families import FAMILIES, save
from tests.support.scripts import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
PEFT = ("peft==0.21.2", "accelerate==1.15.0")
MAKE = """
import sys, torch, transformers
from peft import LoraConfig, get_peft_model
torch.manual_seed(0)
base, folder = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True))
for name, parameter in adapted.named_parameters():
    if "lora_" in name:
        torch.nn.init.normal_(parameter, std=0.3)
adapted.save_pretrained(folder)
with torch.no_grad():
    result = adapted.double()(torch.tensor([[5, 6, 7, 8]]), output_attentions=True)
torch.save(torch.stack(result.attentions), f"{folder}/weights.pt")
"""


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A GPT-2's directory, that of an adapter with the weights that its model returns, and the environment of peft."""
    folder = tmp_path_factory.mktemp("adapters")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder / "peft", *PEFT]
    subprocess.run(pip, check=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, folder / "peft")))}
    save(FAMILIES["gpt 2"], folder / "base")
    script = [sys.executable, "-c", MAKE, folder / "base", folder / "adapter"]
    subprocess.run(script, check=True, env=environment, capture_output=True)
    return folder, environment


@pytest.mark.extended
def test_the_weights_are_those_of_the_model_with_its_adapter(adapter, tmp_path):
    import torch

    folder, environment = adapter
    command = ["-m", "export", "hf", folder / "adapter", "--repository", tmp_path, "--name", "adapted"]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with running(tmp_path) as client:
        found = client.post("/v1/attention/adapted", json={"input_ids": [[5, 6, 7, 8]], "outputs": ["weights"]}).json()
        described = client.get("/v1/attention/adapted").json()
    expected = torch.load(folder / "adapter" / "weights.pt").numpy()
    np.testing.assert_allclose(found["weights"], expected, rtol=0, atol=3e-6)
    assert described["weights"].startswith("adapter sha256:")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"base_model_name_or_path": "org/model"}, "is an adapter of org/model, which is no model's directory here"),
        ({}, "adapter_config.json has no base_model_name_or_path"),
    ],
    ids=["not here", "no name"],
)
def test_an_adapter_without_its_model_is_refused(config, reason, tmp_path, capsys):
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    assert main(["hf", str(tmp_path), "--repository", str(tmp_path / "models")]) == 2
    assert reason in capsys.readouterr().err


def test_gguf_is_refused_by_name(tmp_path, capsys):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert main(["hf", str(tmp_path), "--repository", str(tmp_path / "models")]) == 2
    assert "GGUF is not read: export the model that it was made of" in capsys.readouterr().err
