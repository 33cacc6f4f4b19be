"""Sounds become the numbers that transformers' feature extractors make of them."""

import json

import numpy as np
import pytest
import transformers

from service.media.audio_processor import audio_processor
from tests.support.media import tone

RATE = 16_000
SOUNDS = {
    "a sweep": tone(0.5, RATE)[:, 0],
    "loud": tone(0.31, RATE)[:, 0] * 3,
    "quiet": tone(0.2, RATE)[:, 0] * 1e-4,
    "silence": np.zeros(5000, np.float32),
    "with an offset": tone(0.25, RATE)[:, 0] + 0.3,
    "one frame": tone(0.025, RATE)[:, 0],
    "nearly two frames": tone(0.03494, RATE)[:, 0],
    "the longest": tone(0.6, RATE)[:, 0],
    "a click": np.eye(1, 4000, 1234, dtype=np.float32)[0],
    "steps": np.repeat(np.float32([0.5, -0.5] * 20), 100),
}
LENGTH = 9_600  # samples of 0.6 s
EXTRACTORS = {  # the class, its settings, the shape of the model's input, how it is called, and the largest difference
    "wav2vec 2.0": ("Wav2Vec2FeatureExtractor", {}, (LENGTH,), {"max_length": LENGTH}, 0),
    "HuBERT large": (
        "Wav2Vec2FeatureExtractor", {"return_attention_mask": True}, (LENGTH,), {"max_length": LENGTH}, 0,
    ),
    "not normalized": ("Wav2Vec2FeatureExtractor", {"do_normalize": False}, (LENGTH,), {"max_length": LENGTH}, 0),
    "AST": ("ASTFeatureExtractor", {"max_length": 64}, (64, 128), {}, 5e-7),
    "AST, few bins": ("ASTFeatureExtractor", {"max_length": 64, "num_mel_bins": 16}, (64, 16), {}, 5e-7),
    "AST, not normalized": ("ASTFeatureExtractor", {"max_length": 64, "do_normalize": False}, (64, 128), {}, 3e-6),
    "Whisper": ("WhisperFeatureExtractor", {"chunk_length": 1}, (80, 100), {}, 2e-5),
    "Whisper large": ("WhisperFeatureExtractor", {"chunk_length": 1, "feature_size": 128}, (128, 100), {}, 2e-5),
}  # fmt: skip


@pytest.mark.parametrize("name", EXTRACTORS)
@pytest.mark.filterwarnings("ignore")  # those of transformers
def test_the_numbers_are_those_of_transformers(name, tmp_path):
    kind, settings, shape, options, error = EXTRACTORS[name]
    reference = getattr(transformers, kind)(**settings)
    reference.save_pretrained(tmp_path)
    own = audio_processor(json.loads((tmp_path / "preprocessor_config.json").read_bytes()), shape)
    padding = {"padding": "max_length"} if "max_length" in options else {}
    for sound, samples in SOUNDS.items():
        made = reference(samples, sampling_rate=RATE, return_tensors="np", **options, **padding)
        expected = next(made[key] for key in ("input_values", "input_features") if key in made)[0]
        actual = own(samples)
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, rtol=0, atol=error, err_msg=sound)


REFUSED = {
    "another": ({"feature_extractor_type": "ClapFeatureExtractor"}, (80, 100), "Clap.*, is not supported"),
    "no name": ({}, (80, 100), "names no image processor or feature extractor"),
    "no rate": ({"feature_extractor_type": "Wav2Vec2FeatureExtractor"}, (LENGTH,), "does not fit to the model"),
    "another shape": (
        {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": RATE}, (80, 100), "does not fit",
    ),
    "random numbers": (
        {"feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": RATE, "n_fft": 400, "hop_length": 160,
         "dither": 1.0}, (80, 100), "adds random numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("content", "shape", "reason"), REFUSED.values(), ids=REFUSED)
def test_feature_extractors_that_are_refused(content, shape, reason):
    with pytest.raises(ValueError, match=reason):
        audio_processor(content, shape)
