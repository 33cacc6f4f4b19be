"""Models with a tower for texts and one for images answer as transformers does with its tokenizer and processor."""

import io
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from export.__main__ import main
from export.hf.description import block_of
from export.hf.pretrained import load
from tests.support.application import running
from tests.support.families import IMAGE, TEXT, Family, save
from tests.support.media import files, text_of
from tests.support.texts import TEXTS, tokenizer
from tests.support.towers import MODELS

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
SLACK = 4  # of two float32 runs of the same numbers, one may be so many times as far from float64 as the other
EPS = np.finfo(np.float32).eps
ANSWERS = {
    "output": "logits_per_text", "logits_per_image": "logits_per_image", "text_embedding": "text_embeds",
    "image_embedding": "image_embeds",
}  # fmt: skip
SENT = [files()[mode] for mode in ("JPEG", "320x240", "WebP")]


@dataclass
class Served:
    """A client of the server, and the model in transformers with its processors."""

    client: object
    model: transformers.PreTrainedModel
    processor: object

    def expected(self, texts, contents, dtype):
        """Every output by Heed's names, computed in ``dtype``."""
        opened = [self.processor.convert_to_rgb(Image.open(io.BytesIO(content))) for content in contents]
        pixels = self.processor(opened, return_tensors="pt")["pixel_values"].to(dtype)
        tokens = tokenizer()(texts, padding=True, return_tensors="pt")
        given = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            result = self.model.to(dtype)(
                **given, pixel_values=pixels, output_attentions=True, output_hidden_states=True, return_dict=True
            )
        outputs = {name: result[theirs] for name, theirs in ANSWERS.items()}
        for prefix, of in (("", result.text_model_output), ("vision_", result.vision_model_output)):
            outputs[f"{prefix}weights"] = torch.stack(of.attentions)
            outputs[f"{prefix}hidden_states"] = torch.stack(of.hidden_states)
        return {name: tensor.double().numpy() for name, tensor in outputs.items()}


def marked():
    """``make test-families`` takes all of them, ``make test-all`` one."""
    of_all, of_families = pytest.mark.extended, (pytest.mark.extended, pytest.mark.family)
    return [pytest.param(name, marks=of_all if name == "clip" else of_families) for name in MODELS]


@pytest.fixture(params=marked())
def served(request, towers):
    """A model by its name, from what ``save_pretrained`` writes."""
    folder = towers(request.param)
    model = transformers.AutoModel.from_pretrained(folder / "model", attn_implementation="eager").eval()
    with running(folder / "models") as client:
        yield Served(client, model, MODELS[request.param].image_processor())


def test_texts_and_pictures_have_the_outputs_of_transformers(served):
    for texts, contents in ((TEXTS, SENT[:1]), (TEXTS[:1], SENT), ([*TEXTS, TEXTS[0]], SENT[:2])):
        plain, exact = (served.expected(texts, contents, dtype) for dtype in (torch.float32, torch.float64))
        pictures = [text_of(content) for content in contents]
        for names in (list(exact), [*ANSWERS]):
            answer = served.client.post("/v1/text/mine", json={"text": texts, "images": pictures, "outputs": names})
            assert answer.status_code == 200, answer.text
            for name in names:
                error = SLACK * (np.abs(plain[name] - exact[name]).max() + EPS * np.abs(exact[name]).max())
                np.testing.assert_allclose(answer.json()[name], exact[name], rtol=0, atol=error, err_msg=name)


def test_one_text_has_no_axis_and_one_picture_has(served):
    body = {"text": TEXTS[0], "images": text_of(SENT[0]), "outputs": ["output", "logits_per_image", "vision_weights"]}
    answer = served.client.post("/v1/text/mine", json=body).json()
    both = served.client.post("/v1/text/mine", json={**body, "text": [TEXTS[0]], "images": [body["images"]]}).json()
    assert [answer["output"]] == both["output"]
    assert [answer["logits_per_image"]] == both["logits_per_image"]
    assert answer["vision_weights"] == both["vision_weights"]


def test_options_select_heads_for_pictures(served):
    body = {"text": TEXTS[0], "images": [text_of(SENT[0])], "outputs": ["vision_weights"]}
    whole = np.array(served.client.post("/v1/text/mine", json=body).json()["vision_weights"])
    some = served.client.post("/v1/text/mine", json={**body, "layers": 1, "heads": [0, 3], "queries": 0}).json()
    np.testing.assert_array_equal(some["vision_weights"], whole[1:2][:, :, [0, 3]][:, :, :, :1])


def test_a_removed_head_for_pictures_changes_no_text(served):
    described = served.client.get("/v1/attention/mine").json()
    has_masks = served.model.config.model_type != "blip"  # it does not call transformers' AttentionInterface
    assert ("vision_head_mask" in [one["name"] for one in described["inputs"]]) == has_masks
    if not has_masks:
        return
    body = {"text": TEXTS[0], "images": [text_of(SENT[0])], "outputs": ["text_embedding", "image_embedding"]}
    whole = served.client.post("/v1/text/mine", json=body).json()
    removed = served.client.post("/v1/text/mine", json={**body, "vision_head_mask": [[1, 0, 1, 1], [1] * 4]}).json()
    np.testing.assert_allclose(removed["text_embedding"], whole["text_embedding"], rtol=0, atol=8 * EPS)
    assert np.abs(np.subtract(removed["image_embedding"], whole["image_embedding"])).max() > 1e-3


@pytest.mark.parametrize(
    ("more", "status", "detail"),
    [
        ({}, 422, "pixel_values: missing (required for output)"),
        (
            {"images": [text_of(SENT[0])], "pixel_values": [[[[0]]]]},
            400,
            "pixel_values: given, and computed from another field, too",
        ),
    ],
    ids=["no picture", "both"],
)
def test_a_picture_is_required_once(served, more, status, detail):
    answer = served.client.post("/v1/text/mine", json={"text": TEXTS[0], **more})
    assert answer.status_code == status
    assert detail in answer.json()["detail"]


def test_texts_and_images_have_a_size_of_their_own(once):
    folder = once("clip", lambda folder: save(MODELS["clip"].family, folder))
    block, _ = block_of(load(folder), "mine")
    assert block.description.startswith("2 layers of 4 heads for texts, 2 of 4 for images; ")
    assert {name: spec.shape for name, spec in block.inputs.items()} == {
        "input_ids": ("batch", "n"), "attention_mask": ("1|batch", "1|n"), "pixel_values": ("images", 3, 16, 16),
        "head_mask": (2, 4), "vision_head_mask": (2, 4),
    }  # fmt: skip
    assert {name: block.outputs[name].shape for name in (*ANSWERS, "weights", "vision_weights")} == {
        "output": ("batch", "images"), "logits_per_image": ("images", "batch"), "text_embedding": ("batch", 8),
        "image_embedding": ("images", 8), "weights": (2, "batch", 4, "n", "n"),
        "vision_weights": (2, "images", 4, 17, 17),
    }  # fmt: skip
    assert block.limits == {"n": 48}


def test_the_embeddings_of_texts_need_no_picture_and_those_of_pictures_no_text(served):
    pictures = [text_of(content) for content in SENT]
    both = {"text": TEXTS, "images": pictures, "outputs": ["text_embedding", "image_embedding", "vision_weights"]}
    whole = served.client.post("/v1/text/mine", json=both).json()
    texts = served.client.post("/v1/text/mine", json={"text": TEXTS, "outputs": ["text_embedding"]}).json()
    outputs = ["image_embedding", "vision_weights"]
    images = served.client.post("/v1/attention/mine", json={"images": pictures, "outputs": outputs}).json()
    for name, answer in (("text_embedding", texts), ("image_embedding", images), ("vision_weights", images)):
        np.testing.assert_allclose(answer[name], whole[name], rtol=0, atol=8 * EPS, err_msg=name)


def test_null_is_an_input_that_is_left_out(served):
    body = {"input_ids": [[0, 5, 2]], "outputs": ["text_embedding"]}
    left_out, null = (served.client.post("/v1/attention/mine", json=body | one) for one in ({}, {"pixel_values": None}))
    assert null.status_code == 200, null.text
    assert null.json() == left_out.json()
    needed = served.client.post("/v1/attention/mine", json={**body, "pixel_values": None, "outputs": ["output"]})
    assert (needed.status_code, needed.json()["detail"]) == (422, "pixel_values: missing (required for output)")


@pytest.mark.parametrize(
    ("given", "output", "detail"),
    [
        ("images", "entropy", "input_ids: missing (required for weights)"),
        ("images", "logits_per_image", "input_ids: missing (required for logits_per_image)"),
        ("input_ids", "output", "pixel_values: missing (required for output)"),
    ],
)
def test_what_an_output_needs_is_named(served, given, output, detail):
    sent = {"images": [text_of(SENT[0])], "input_ids": [[0, 5, 2]]}
    answer = served.client.post("/v1/attention/mine", json={given: sent[given], "outputs": [output]})
    assert (answer.status_code, answer.json()["detail"]) == (422, detail)


def test_the_positions_of_texts_end_where_the_config_of_their_tower_says(tmp_path):
    """SigLIP looks its positions up in a table; in TIPSv2 only the config has the limit."""
    family = Family("Tipsv2Model", {"text_config": TEXT, "vision_config": {**IMAGE, "num_register_tokens": 1}})
    save(family, tmp_path)
    block, _ = block_of(load(tmp_path), "mine")
    assert block.limits == {"n": 48}


@pytest.mark.extended
@pytest.mark.family
def test_pictures_of_siglip_2_have_one_size(tmp_path):
    """transformers' processor keeps proportions; of pictures of that size the answers are those of its patches."""
    height, width = 24, 16
    vision = {"patch_size": 8, "num_patches": 16, "image_size": None}
    save(Family("Siglip2Model", {"text_config": TEXT, "vision_config": IMAGE | vision}), tmp_path / "saved")
    processor = transformers.Siglip2ImageProcessorPil(patch_size=8, max_num_patches=6)
    processor.save_pretrained(tmp_path / "saved")
    target = ("--repository", str(tmp_path / "models"), "--name", "mine")
    assert main(["hf", str(tmp_path / "saved"), "--input", f"pixel_values=3,{height},{width}", *target]) == 0
    opened = (Image.open(io.BytesIO(content)).convert("RGB") for content in SENT[:2])
    made = processor([one.resize((width, height), Image.Resampling.BILINEAR) for one in opened], return_tensors="pt")
    assert made["spatial_shapes"].tolist() == [[3, 2]] * 2
    ids = [[5, 9, 31, 7], [8, 8, 40, 6]]
    model = transformers.AutoModel.from_pretrained(tmp_path / "saved", attn_implementation="eager").eval()
    with torch.no_grad():
        plain, exact = (
            model.to(dtype)(
                input_ids=torch.tensor(ids), **{**made, "pixel_values": made["pixel_values"].to(dtype)},
                output_attentions=True,
            )
            for dtype in (torch.float32, torch.float64)
        )  # fmt: skip
    body = {"input_ids": ids, "images": [*map(text_of, SENT[:2])], "outputs": [*ANSWERS, "vision_weights"]}
    with running(tmp_path / "models") as client:
        answer = client.post("/v1/attention/mine", json=body)
    assert answer.status_code == 200, answer.text
    for ours, theirs in ANSWERS.items():
        error = SLACK * (float((plain[theirs] - exact[theirs]).abs().max()) + EPS * float(exact[theirs].abs().max()))
        np.testing.assert_allclose(answer.json()[ours], exact[theirs], rtol=0, atol=error, err_msg=ours)
    weights = torch.stack(exact.vision_model_output.attentions)
    np.testing.assert_allclose(answer.json()["vision_weights"], weights, rtol=0, atol=32 * EPS)
