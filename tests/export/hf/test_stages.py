"""Stages of a model with weights of other shapes are outputs of their own."""

import io
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from export.__main__ import main
from export.hf.description import block_of
from export.hf.pretrained import ModelRefused, load
from export.hf.verification.float64 import in_float64
from tests.support.application import running
from tests.support.families import Family, save
from tests.support.media import files, text_of

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]  # those of transformers
# Two stages: 64 patches in four windows, and 16 in one.
CONFIG = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
SWIN = Family("SwinModel", CONFIG)
SLACK = 4  # of two float32 runs of the same numbers, one may be so many times as far from float64 as the other
SIDE = {"height": 16, "width": 16}
SENT = [files()[mode] for mode in ("JPEG", "320x240")]


@pytest.fixture
def saved(once):
    def fill(folder):
        save(SWIN, folder)
        transformers.ViTImageProcessorPil(size=SIDE).save_pretrained(folder)

    return once("swin of stages", fill)


@pytest.fixture
def client(saved, once):
    def fill(folder):
        assert main(["hf", str(saved), "--name", "mine", "--repository", str(folder)]) == 0

    with running(once("served swin of stages", fill)) as client:
        yield client


def expected(saved, dtype):
    """transformers' answers for the pictures, by Heed's names."""
    model = transformers.SwinModel.from_pretrained(saved, attn_implementation="eager").eval().to(dtype)
    pictures = [Image.open(io.BytesIO(content)).convert("RGB") for content in SENT]
    pixels = transformers.ViTImageProcessorPil(size=SIDE)(pictures, return_tensors="pt")["pixel_values"].to(dtype)
    with torch.no_grad(), in_float64() if dtype == torch.float64 else nullcontext():
        result = model(pixels, output_attentions=True)
    first, last = result.attentions[:1], result.attentions[1:]  # of the last layer of each stage
    return {
        "output": result.last_hidden_state.numpy(),
        "weights": torch.stack(last).numpy(),
        "weights_stage1": torch.stack(first).unflatten(1, (2, 4)).numpy(),
    }


def test_each_stage_has_the_weights_of_transformers(saved, client):
    plain, exact = (expected(saved, dtype) for dtype in (torch.float32, torch.float64))
    pictures = [text_of(content) for content in SENT]
    answer = client.post("/v1/attention/mine", json={"images": pictures, "outputs": [*exact]})
    assert answer.status_code == 200, answer.text
    for name, numbers in exact.items():
        assert np.array(answer.json()[name]).shape == numbers.shape
        error = SLACK * np.abs(plain[name] - numbers).max()
        np.testing.assert_allclose(answer.json()[name], numbers, rtol=0, atol=error, err_msg=name)
    assert exact["weights_stage1"].shape == (1, 2, 4, 2, 16, 16)  # layers, pictures, windows, heads, patches


def test_options_of_the_weights_are_those_of_the_last_stage(saved, client):
    exact = expected(saved, torch.float64)["weights"]
    body = {"images": [text_of(content) for content in SENT], "outputs": ["weights"], "layers": 0, "heads": [0, 3]}
    answer = client.post("/v1/attention/mine", json=body)
    assert answer.status_code == 200, answer.text
    weights = answer.json()["weights"]
    np.testing.assert_allclose(weights, exact[:, :, [0, 3]], rtol=0, atol=1e-5)


def test_the_description_has_the_layers_and_heads_of_each_stage(client):
    description = client.get("/v1/attention/mine").json()
    assert description["description"].startswith("1 layer of 2 heads, 1 layer of 4 heads; returns hidden states")
    shapes = {spec["name"]: spec["shape"] for spec in description["outputs"]}
    assert shapes["weights"] == [1, "batch", 4, 16, 16]
    assert shapes["weights_stage1"] == [1, "batch", 4, 2, 16, 16]


def test_windows_in_the_last_stage_are_refused(tmp_path):
    save(Family("SwinModel", {**CONFIG, "image_size": 32}), tmp_path)
    with pytest.raises(ModelRefused, match="the layers' attentions have different shapes, so they are not one tensor"):
        block_of(load(tmp_path), "mine")


def test_stages_may_have_as_many_heads(tmp_path):
    save(Family("SwinModel", {**CONFIG, "num_heads": [2, 2]}), tmp_path)
    block, _ = block_of(load(tmp_path), "mine")
    assert block.outputs["weights"].shape == (1, "batch", 2, 16, 16)
    assert block.outputs["weights_stage1"].shape == (1, "batch", 4, 2, 16, 16)


def test_windows_in_the_only_stage_are_refused(tmp_path):
    save(Family("SwinModel", {**CONFIG, "depths": [2], "num_heads": [2]}), tmp_path)
    with pytest.raises(ModelRefused, match="are not those of each row of the batch"):
        block_of(load(tmp_path), "mine")
