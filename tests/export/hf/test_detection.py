"""Models that find objects in pictures: their decoder has learned queries in place of tokens."""

import io

import numpy as np
import PIL.Image
import pytest
import torch
import transformers

from export.__main__ import main
from export.hf.description import block_of
from export.hf.pretrained import load
from tests.support.application import running
from tests.support.media import files, text_of

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
SIZE = 64
SLACK = 4  # of two float32 runs of the same numbers, one may be so many times as far from float64 as the other
BACKBONE = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic",
    "out_features": ["stage2"],
}  # fmt: skip
DETR = {
    "use_timm_backbone": False, "backbone": None, "backbone_config": BACKBONE, "d_model": 32, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "num_queries": 6, "num_labels": 3,
}  # fmt: skip
MODELS = ("DetrForObjectDetection", "ConditionalDetrForObjectDetection", "TableTransformerForObjectDetection")
OUTPUTS = {
    "output": "logits", "pred_boxes": "pred_boxes", "weights": "decoder_attentions",
    "encoder_weights": "encoder_attentions", "cross_weights": "cross_attentions",
}  # fmt: skip


def save(name, folder):
    """A small model whose attention is not uniform; its convolutions stay as they are, or float32 would be noise."""
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**DETR))
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)


def test_detr_has_boxes_and_the_weights_of_both_stacks(once):
    folder = once("detr", lambda folder: save(MODELS[0], folder))
    block, _ = block_of(load(folder, shapes={"pixel_values": (3, SIZE, SIZE)}), "mine")
    assert block.inputs.keys() == {
        "pixel_values",
        "pixel_mask",
        "head_mask",
        "decoder_head_mask",
        "cross_attn_head_mask",
    }
    assert {name: block.outputs[name].shape for name in OUTPUTS} == {
        "output": ("batch", 6, 4), "pred_boxes": ("batch", 6, 4), "weights": (2, "batch", 4, 6, 6),
        "encoder_weights": (2, "batch", 4, 64, 64), "cross_weights": (2, "batch", 4, 6, 64),
    }  # fmt: skip


@pytest.mark.extended
@pytest.mark.family
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_transformers(name, tmp_path):
    """Of tensors, and of pictures as files, which are padded as ``pad_size`` of transformers' image processor says."""
    save(name, tmp_path / "saved")
    size = {"shortest_edge": 40, "longest_edge": SIZE}
    processor = transformers.DetrImageProcessorPil(size=size)
    processor.save_pretrained(tmp_path / "saved")
    assert main(["hf", str(tmp_path / "saved"), "--repository", str(tmp_path / "models"), "--name", "mine"]) == 0
    contents = [files()[file] for file in ("JPEG", "320x240")]
    pictures = [PIL.Image.open(io.BytesIO(content)).convert("RGB") for content in contents]
    made = processor(pictures, pad_size={"height": SIZE, "width": SIZE}, return_tensors="pt")
    pixels = np.random.default_rng(0).standard_normal((2, 3, SIZE, SIZE), np.float32)
    model = getattr(transformers, name).from_pretrained(tmp_path / "saved", attn_implementation="eager").eval()
    with running(tmp_path / "models") as client:
        for body, given in (
            ({"pixel_values": pixels.tolist()}, {"pixel_values": torch.from_numpy(pixels)}),
            ({"images": [*map(text_of, contents)]}, made),
        ):
            check(client, model, body, given)


def check(client, model, body, given):
    """Compare the answers to ``body`` with those of transformers to ``given``."""
    with torch.no_grad():
        plain, exact = (
            model.to(dtype)(**{**given, "pixel_values": given["pixel_values"].to(dtype)}, output_attentions=True)
            for dtype in (torch.float32, torch.float64)
        )
    for outputs in ([*OUTPUTS], ["output", "pred_boxes"]):
        answer = client.post("/v1/attention/mine", json={**body, "outputs": outputs})
        assert answer.status_code == 200, answer.text
        for ours in outputs:
            single, double = (
                result[OUTPUTS[ours]] if ours in ("output", "pred_boxes") else torch.stack(result[OUTPUTS[ours]])
                for result in (plain, exact)
            )
            error = SLACK * float((single - double).abs().max())
            np.testing.assert_allclose(answer.json()[ours], double, rtol=0, atol=error, err_msg=ours)
