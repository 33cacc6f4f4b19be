"""Models that are several in one: a part is exported from the directory of the whole."""

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from export.__main__ import main
from export.hf.description import block_of
from export.hf.pretrained import ModelRefused, load
from export.verification.sessions import session
from tests.export.hf.generating import metadata_entry
from tests.support.families import GROUPED, IMAGE, TEXT, Family, save

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
ERROR = 1e-5  # of the largest number, between ONNX Runtime and transformers in float32
CLIP = Family("CLIPModel", {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 8})
LLAVA = Family(
    "LlavaForConditionalGeneration",
    {
        "text_config": {**GROUPED, "model_type": "llama"},
        "vision_config": {**IMAGE, "model_type": "clip_vision_model"},
        "image_token_index": 59,
    },
)


@pytest.fixture
def clip(once):
    return once("clip", lambda folder: save(CLIP, folder))


@pytest.fixture
def llava(once):
    return once("llava", lambda folder: save(LLAVA, folder))


def exported(folder, part, repository):
    assert main(["hf", str(folder), "--part", part, "--name", "mine", "--repository", str(repository)]) == 0
    return repository / "mine" / "1"


def test_the_parts_are_named_where_none_is_chosen(tmp_path):
    save(Family("LlavaNextForConditionalGeneration", LLAVA.config), tmp_path)
    with pytest.raises(ModelRefused, match=r"several models in one; --part exports one: vision_tower, language_model$"):
        load(tmp_path)


def test_a_part_that_is_not_there_is_refused(clip, sentence_model):
    with pytest.raises(ModelRefused, match="CLIPModel has no part vision; it has text_model, vision_model"):
        load(clip, part="vision")
    with pytest.raises(ModelRefused, match="has no part vision; it is one model"):
        load(sentence_model, part="vision")


def test_a_part_has_a_name_and_an_origin_of_its_own(clip):
    block, _ = block_of(load(clip, part="text_model"), "mine")
    assert block.title == "CLIPTextModel (clip_text_model)"
    assert block.weights.startswith(f"{clip.name}/text_model sha256:")


def test_what_another_part_lacks_is_no_obstacle(clip, tmp_path):
    for file in clip.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if name != "vision_model.post_layernorm.weight"}
    assert len(kept) < len(tensors)
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    assert load(tmp_path, part="text_model").random == ()
    assert load(tmp_path, part="vision_model").random == ("post_layernorm.weight",)


@pytest.mark.extended
def test_a_tower_answers_as_it_does_in_the_whole(clip, tmp_path):
    folder = exported(clip, "vision_model", tmp_path)
    pictures = np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)
    output, weights = session(folder / "model.onnx").run(["output", "weights"], {"pixel_values": pictures})
    whole = transformers.CLIPModel.from_pretrained(clip, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = whole.vision_model(torch.from_numpy(pictures), output_attentions=True)
    hidden = expected.last_hidden_state
    np.testing.assert_allclose(output, hidden, rtol=0, atol=ERROR * hidden.abs().max())
    np.testing.assert_allclose(weights, torch.stack(expected.attentions), rtol=0, atol=ERROR)


@pytest.mark.extended
def test_a_language_model_has_the_head_of_the_whole(llava, tmp_path):
    """Without pictures the whole is its language model."""
    folder = exported(llava, "language_model", tmp_path)
    assert metadata_entry(folder, "generation")["in_place"]
    ids = np.array([[5, 6, 7, 20]])
    output, weights = session(folder / "model.onnx").run(["output", "weights"], {"input_ids": ids})
    whole = transformers.LlavaForConditionalGeneration.from_pretrained(llava, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = whole(torch.from_numpy(ids), output_attentions=True)
    np.testing.assert_allclose(output, expected.logits, rtol=0, atol=ERROR * expected.logits.abs().max())
    np.testing.assert_allclose(weights, torch.stack(expected.attentions), rtol=0, atol=ERROR)
