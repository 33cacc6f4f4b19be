"""Families of transformers, from a directory to answers over HTTP that are equal to transformers' own.

``make test-families`` runs all of them; five run otherwise.
"""

import os
import re

import numpy as np
import pytest
import torch
import transformers

from export.__main__ import main
from export.hf.float64 import in_float64
from tests.support.families import FAMILIES, FEW, REFUSED, save
from tests.support.server import serving

EVERY = bool(os.environ.get("HEED_TEST_FAMILIES"))
EPS = np.finfo(np.float32).eps
SIZES = {"n": 9, "m": 6}
DRAWS = 4  # of inputs, whose largest error is compared with the largest limit: the error of a few numbers is random
pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers


def drawn(block, padding, seed):
    """Inputs of two rows by the description that the server gives; with ``padding`` the second row is shorter."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for spec in block["inputs"]:
        shape = [{"batch": 2, **SIZES}.get(dim, dim) for dim in spec["shape"]]
        if spec["dtype"] == "float32":
            inputs[spec["name"]] = rng.standard_normal(shape, np.float32)
        elif spec["name"].endswith("input_ids"):
            inputs[spec["name"]] = rng.integers(5, 60, shape)
        elif spec["name"].endswith("attention_mask") and padding:
            inputs[spec["name"]] = np.ones(shape, int)
            inputs[spec["name"]][1, shape[1] // 2 :] = 0
    return inputs


def answered(model, inputs, dtype):
    """What transformers answers, by Heed's names."""
    tensors = {name: torch.from_numpy(x) for name, x in inputs.items()}
    tensors = {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}
    options = {} if model.config.model_type in ("vit", "deit", "dinov2") else {"use_cache": False}
    with torch.no_grad():
        result = model(**tensors, output_attentions=True, **options)
    if "start_logits" in result:
        output = torch.stack([result.start_logits, result.end_logits], -1)
    else:
        output = result.logits if "logits" in result else result.last_hidden_state
    if result.get("encoder_attentions"):
        names = {"weights": "decoder", "encoder_weights": "encoder", "cross_weights": "cross"}
        attentions = {ours: result[f"{theirs}_attentions"] for ours, theirs in names.items()}
    else:
        attentions = {"weights": result.attentions}
    return {"output": output.numpy()} | {name: torch.stack(of).numpy() for name, of in attentions.items()}


def errors(client, folder, padding, seed):
    """The error of each answer of the server, and the limit: twice transformers' own float32 error."""
    block = client.get("/v1/attention/mine").json()
    inputs = drawn(block, padding, seed)
    model = getattr(transformers, transformers.AutoConfig.from_pretrained(folder).architectures[0])
    model = model.from_pretrained(folder, attn_implementation="eager").eval()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    plain = answered(model, inputs, torch.float32)
    model.double()
    with in_float64():
        exact = answered(model, inputs, torch.float64)
    body = {name: x.tolist() for name, x in inputs.items()}
    answer = client.post("/v1/attention/mine", json=body | {"outputs": list(exact)}).json()
    alone = client.post("/v1/attention/mine", json=body | {"outputs": ["output"]}).json()
    pairs = [(name, answer[name]) for name in exact] + [("output", alone["output"])]
    for name, computed in pairs:
        assert np.shape(computed) == exact[name].shape, name
        limit = 2 * np.abs(plain[name] - exact[name]).max() + EPS * np.abs(exact[name]).max()
        yield name, np.abs(np.array(computed) - exact[name]).max(), limit


@pytest.mark.parametrize("name", [name for name in FAMILIES if EVERY or name in FEW])
def test_answers_are_those_of_transformers(name, tmp_path):
    save(FAMILIES[name], tmp_path / "model")
    assert main(["hf", str(tmp_path / "model"), "--name", "mine", "--repository", str(tmp_path / "models")]) == 0
    with serving(tmp_path / "models") as client:
        for padding in (False, True):
            compared = [errors(client, tmp_path / "model", padding, seed) for seed in range(DRAWS)]
            for output in zip(*compared, strict=True):
                names, errors_, limits = zip(*output, strict=True)
                assert max(errors_) <= max(limits), names[0]


@pytest.mark.parametrize("name", REFUSED if EVERY else [])
def test_what_cannot_be_had_is_refused(name, tmp_path, capsys):
    family, reason = REFUSED[name]
    save(family, tmp_path / "model")
    assert main(["hf", str(tmp_path / "model"), "--name", "mine", "--repository", str(tmp_path / "models")]) == 2
    assert re.search(reason, capsys.readouterr().err)
    assert list((tmp_path / "models").rglob("*")) == []
