"""The shapes of inputs: of the config, of the image processor's file, or of the flag ``--input``."""

import json

import numpy as np
import pytest
import transformers
from transformers import AltCLIPTextConfig
from transformers.models.altclip.modeling_altclip import AltRobertaModel

from export.__main__ import main
from export.hf.description import block_of
from export.hf.inputs import inputs_of
from export.hf.pretrained import ModelRefused, load
from tests.support.families import TEXT, Family, save

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers
RESNET = Family("ResNetModel", {"embedding_size": 4, "hidden_sizes": [4, 4], "depths": [1, 1]})  # of any size of images
SPECTROGRAM = {"max_length": 32, "num_mel_bins": 16, "patch_size": 4, "frequency_stride": 4, "time_stride": 4}
LAYERS = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
AST = Family("ASTModel", {**LAYERS, **SPECTROGRAM})
CONVOLUTIONS = {"conv_dim": [8], "conv_stride": [5], "conv_kernel": [10], "num_feat_extract_layers": 1}
WAV2VEC = Family("Wav2Vec2Model", {**LAYERS, **CONVOLUTIONS, "num_conv_pos_embedding_groups": 2})
SEGGPT = Family(
    "SegGptModel",
    {
        **LAYERS,
        "image_size": [16, 8],
        "patch_size": 4,
        "pretrain_image_size": 8,
        "merge_index": 0,
        "intermediate_hidden_state_indices": [0],
        "decoder_hidden_size": 8,
    },
)
BERT = Family("BertModel", {**TEXT, **LAYERS})
VIDEOMAE = Family("VideoMAEModel", {**LAYERS, "image_size": 8, "patch_size": 4, "num_frames": 4})
VJEPA2 = Family(
    "VJEPA2Model",
    {**LAYERS, "crop_size": 16, "patch_size": 8, "frames_per_clip": 4, "mlp_ratio": 1, "pred_hidden_size": 8,
     "pred_num_attention_heads": 2, "pred_num_hidden_layers": 1, "pred_mlp_ratio": 1},
)  # fmt: skip
PATCHTST = Family(
    "PatchTSTModel",
    {"d_model": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "ffn_dim": 8, "context_length": 16},
)
PARAKEET = Family(
    "ParakeetEncoder",
    {**LAYERS, "num_mel_bins": 80, "subsampling_conv_channels": 4, "conv_kernel_size": 3, "convolution_bias": True},
)
PROCESSORS = {  # settings of an image processor, and height and width
    "size": ({"size": {"height": 12, "width": 16}}, (12, 16)),
    "shortest edge": ({"size": {"shortest_edge": 12}}, (12, 12)),
    "a number": ({"size": 12}, (12, 12)),
    "crop": ({"size": {"shortest_edge": 12}, "crop_size": {"height": 8, "width": 9}, "do_center_crop": True}, (8, 9)),
}


@pytest.fixture
def shape_of(once):
    """``shape_of(family, given)``: the main input and its shape without the batch."""

    def shape(family, **given):
        folder = once(f"inputs of {family.model}", lambda folder: save(family, folder))
        name, spec = next(iter(inputs_of(load(folder, shapes=given)).items()))
        return name, spec.shape[1:]

    return shape


@pytest.mark.parametrize(("settings", "size"), PROCESSORS.values(), ids=PROCESSORS.keys())
def test_the_size_of_images_is_the_processor_s_where_the_config_has_none(settings, size, tmp_path):
    save(RESNET, tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    assert inputs_of(load(tmp_path))["pixel_values"].shape == ("batch", 3, *size)


def test_a_shape_that_is_given_is_taken(shape_of):
    assert shape_of(RESNET, pixel_values=(3, 8, 6)) == ("pixel_values", (3, 8, 6))
    assert shape_of(WAV2VEC, input_values=(400,)) == ("input_values", (400,))
    assert shape_of(PATCHTST, past_values=(16, 1)) == ("past_values", (16, 1))


def test_a_spectrogram_has_the_size_of_the_config(shape_of):
    assert shape_of(AST) == ("input_values", (32, 16))


def test_a_model_of_videos_has_the_frames_of_the_config(shape_of):
    assert shape_of(VIDEOMAE) == ("pixel_values", (4, 3, 8, 8))


def test_a_class_that_transformers_does_not_list_is_found_beside_its_config(tmp_path):
    assert not hasattr(transformers, AltRobertaModel.__name__)
    AltRobertaModel(AltCLIPTextConfig(**{**TEXT, **LAYERS, "pad_token_id": 1})).save_pretrained(tmp_path)
    assert load(tmp_path).kind == "AltRobertaModel"


PADDED = {
    "a mask": Family("DPRContextEncoder", {**TEXT, **LAYERS, "projection_dim": 0, "pad_token_id": 1}),
    "the last token": Family("DPRContextEncoder", {**TEXT, **LAYERS, "projection_dim": 0, "pad_token_id": 59}),
    "lengths": Family("FlaubertModel", {"n_words": 60, "emb_dim": 8, "n_layers": 1, "n_heads": 2, "pad_index": 1}),
}


@pytest.mark.parametrize("family", PADDED.values(), ids=PADDED)
def test_a_mask_that_is_not_given_is_1_where_the_model_makes_one_of_its_padding(family, tmp_path):
    save(family, tmp_path)
    pretrained = load(tmp_path)
    block, original = block_of(pretrained, "mine")
    padding = pretrained.config.pad_token_id
    ids = np.array([[5, 6, padding, padding]])
    found = original({"input_ids": ids}, np.float64)["weights"]
    given = original({"input_ids": ids, "attention_mask": np.ones((1, 1), np.int64)}, np.float64)["weights"]
    assert "attention_mask" in block.inputs
    assert np.abs(found - given).max() <= 1e-12
    assert (found[..., 2:] > 0).all()


@pytest.mark.parametrize("file", ["preprocessor_config.json", "processor_config.json"])
def test_sound_has_a_mask_where_its_feature_extractor_returns_one(file, tmp_path):
    save(WAV2VEC, tmp_path)
    given = {"input_values": (400,)}
    settings: dict[str, object] = {"return_attention_mask": True}
    assert inputs_of(load(tmp_path, shapes=given)).keys() == {"input_values"}
    content = settings if file.startswith("pre") else {"feature_extractor": settings}
    (tmp_path / file).write_text(json.dumps(content))
    assert inputs_of(load(tmp_path, shapes=given))["attention_mask"].shape == ("1|batch", 400)


REFUSED = {
    "no image size": (RESNET, {}, r"no image_size, .* --input pixel_values=3,224,224 gives the shape"),
    "no length of a spectrogram": (PARAKEET, {}, r"no max_source_positions, .* --input input_features=1000,80 gives"),
    "no number of frames": (VJEPA2, {}, r"no num_frames, .* --input pixel_values_videos=16,3,224,224 gives the shape"),
    "no length of sound": (WAV2VEC, {}, r"the shape of input_values follows; --input input_values=16000 gives the"),
    "more inputs": (SEGGPT, {}, "SegGptModel also requires prompt_masks, prompt_pixel_values, which export"),
    "an input of its own": (PATCHTST, {}, "PatchTSTModel takes past_values; .* as --input past_values=SHAPE"),
    "another input": (RESNET, {"input_ids": (3,)}, "--input: ResNetModel takes pixel_values, not input_ids"),
    "other dimensions": (
        RESNET,
        {"pixel_values": (8, 8)},
        "pixel_values have 3 or 4 dimensions, without the batch; got 2",
    ),
    "tokens": (BERT, {"input_ids": (8,)}, "--input: input_ids are of any length"),
}


@pytest.mark.parametrize(("family", "given", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_shape_that_cannot_be_is_refused(family, given, reason, shape_of):
    with pytest.raises(ModelRefused, match=reason):
        shape_of(family, **given)


@pytest.mark.parametrize("text", ["pixel_values", "pixel_values=", "pixel_values=3,0,8", "pixel_values=3x8", "=3"])
def test_the_flag_wants_a_name_and_a_shape(text, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["hf", str(tmp_path), "--input", text])
    assert f"expected a name and a shape, as pixel_values=3,224,224, got '{text}'" in capsys.readouterr().err
