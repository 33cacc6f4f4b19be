"""Models of pictures and sound, served from their directory, answer a file as transformers does with its processor."""

import io

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.auto.image_processing_auto import get_image_processor_class_from_name

from export.__main__ import main
from tests.support.application import running
from tests.support.families import FAMILIES, IMAGE, Family, save
from tests.support.media import files, sound_of, text_of, tone

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]  # those of transformers
ERROR = 3e-6  # of weights, between ONNX Runtime and transformers in float64
SLACK = 4  # of two float32 runs of the same numbers, one may be so many times as far from float64 as the other
DIFFERENT = {"clip", "wav2vec2"}
SIZE = {"height": 16, "width": 16}
PICTURES = {  # the model, its image processor with settings
    "vit": (Family("ViTModel", IMAGE), "ViT", {"size": SIZE}),
    "deit": (Family("DeiTModel", IMAGE), "DeiT", {"size": {"height": 20, "width": 20}, "crop_size": SIZE}),
    "dinov2": (Family("Dinov2Model", IMAGE), "Bit", {"size": {"shortest_edge": 18}, "crop_size": SIZE}),
    "siglip": (Family("SiglipVisionModel", IMAGE), "Siglip", {"size": SIZE}),
    "clip": (Family("CLIPVisionModel", IMAGE), "CLIP", {"size": {"shortest_edge": 16}, "crop_size": SIZE}),
}
RATE = 16_000
SOUNDS = [tone(seconds, RATE)[:, 0] for seconds in (0.03, 0.1, 0.2)]
AST, WAV2VEC2 = (FAMILIES[name].config for name in ("ast", "wav2vec 2"))
RECORDINGS = {  # the model, its feature extractor with settings, and how this is called
    "ast": (
        Family("ASTModel", AST),
        transformers.ASTFeatureExtractor(max_length=32, num_mel_bins=16),
        {},
    ),
    "wav2vec2": (
        Family("Wav2Vec2Model", WAV2VEC2, ("--input", "input_values=3200")),
        transformers.Wav2Vec2FeatureExtractor(),
        {"padding": "max_length", "max_length": 3200},
    ),
    "hubert": (
        Family("HubertModel", WAV2VEC2, ("--input", "input_values=3200")),
        transformers.Wav2Vec2FeatureExtractor(),
        {"padding": "max_length", "max_length": 3200},
    ),
}


def served(name, family, processor, folder, field, sent):
    """The weights of a server for these files, in the model's directory of ``folder``."""
    save(family, folder / "saved")
    processor.save_pretrained(folder / "saved")
    target = ["--repository", str(folder / "models"), "--name", name]
    assert main(["hf", str(folder / "saved"), *target, *family.flags]) == 0
    with running(folder / "models") as client:
        body = {field: [text_of(content) for content in sent], "outputs": ["weights"]}
        response = client.post(f"/v1/attention/{name}", json=body)
    assert response.status_code == 200, response.text
    return response.json()["weights"]


def check(weights, family, folder, values):
    """Compare weights with those of transformers in float64; ``SLACK`` times its float32 error is allowed."""
    model = getattr(transformers, family.model).from_pretrained(folder / "saved", attn_implementation="eager").eval()
    with torch.no_grad():
        single = torch.stack(model(values, output_attentions=True).attentions)
        expected = torch.stack(model.double()(values.double(), output_attentions=True).attentions)
    error = max(ERROR, SLACK * float((single - expected).abs().max()))
    np.testing.assert_allclose(weights, expected, rtol=0, atol=error)


def marked(names):
    """``make test-families`` takes all of them, ``make test-all`` those that differ most."""
    return [pytest.param(name, marks=() if name in DIFFERENT else pytest.mark.family) for name in names]


@pytest.mark.parametrize("name", marked(PICTURES))
def test_the_weights_of_a_picture_are_those_of_transformers(name, tmp_path):
    family, kind, settings = PICTURES[name]
    processor = get_image_processor_class_from_name(f"{kind}ImageProcessorPil")(**settings)
    sent = [files()[mode] for mode in ("JPEG", "320x240", "WebP", "transparent")]
    weights = served(name, family, processor, tmp_path, "images", sent)
    opened = [processor.convert_to_rgb(Image.open(io.BytesIO(content))) for content in sent]
    values = processor(opened, return_tensors="pt")["pixel_values"]
    check(weights, family, tmp_path, values)


@pytest.mark.parametrize("name", marked(RECORDINGS))
def test_the_weights_of_a_sound_are_those_of_transformers(name, tmp_path):
    family, extractor, options = RECORDINGS[name]
    sent = [sound_of(samples, RATE) for samples in SOUNDS]
    weights = served(name, family, extractor, tmp_path, "audio", sent)
    values = extractor(SOUNDS, sampling_rate=RATE, return_tensors="pt", **options)["input_values"]
    check(weights, family, tmp_path, values)


def test_a_sound_of_whisper_beside_its_text(tmp_path):
    extractor = transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    family = FAMILIES["whisper"]
    family = Family(family.model, {**family.config, "max_source_positions": 50})
    save(family, tmp_path / "saved")
    extractor.save_pretrained(tmp_path / "saved")
    assert main(["hf", str(tmp_path / "saved"), "--repository", str(tmp_path / "models"), "--name", "whisper"]) == 0
    content = text_of(sound_of(SOUNDS[2], RATE))
    features = extractor(SOUNDS[2], sampling_rate=RATE, return_tensors="pt")["input_features"]
    model = transformers.WhisperForConditionalGeneration.from_pretrained(
        tmp_path / "saved", attn_implementation="eager"
    )
    with running(tmp_path / "models") as client:
        body = {"audio": content, "decoder_input_ids": [0, 5, 7], "outputs": ["cross_weights"]}
        response = client.post("/v1/attention/whisper", json=body)
        options = {"max_new_tokens": 6, "ignore_eos": True, "outputs": ["cross_weights"]}
        written = client.post("/v1/generate/whisper", json={"audio": [content], **options})
        from_numbers = client.post("/v1/generate/whisper", json={"input_features": features.tolist(), **options})
        both = client.post("/v1/generate/whisper", json={"audio": content, "input_features": features.tolist()})
        several = client.post("/v1/generate/whisper", json={"input_features": [*features.tolist()] * 2, **options})
        short = client.post("/v1/generate/whisper", json={"input_features": features[..., 1:].tolist()})
        text, ids, nothing = (
            client.post("/v1/generate/whisper", json={**given, "max_new_tokens": 2})
            for given in ({"text": "a cat"}, {"input_ids": [1]}, {})
        )
    for answer, field in ((text, "text"), (ids, "input_ids"), (nothing, "input_features")):
        assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert (both.status_code, both.json()["field"]) == (400, "audio")
    assert (short.status_code, short.json()["field"]) == (422, "input_features")
    assert several.json()["generated"] == [*from_numbers.json()["generated"]] * 2
    assert response.status_code == written.status_code == 200, (response.text, written.text)
    (tokens,), (others,) = (one.json()["generated"] for one in (written, from_numbers))
    assert [token["id"] for token in tokens] == [token["id"] for token in others]
    for token, other in zip(tokens, others, strict=True):
        np.testing.assert_allclose(token["cross_weights"], other["cross_weights"], rtol=0, atol=2e-5)
    with torch.no_grad():
        whole = model.eval().double()(
            features.double(), decoder_input_ids=torch.tensor([[0, 5, 7]]), output_attentions=True
        )
    difference = np.array(response.json()["cross_weights"]) - torch.stack(whole.cross_attentions)[:, 0].numpy()
    assert np.abs(difference).max() <= 2e-5  # Whisper's spectrogram itself differs by that between its ways
