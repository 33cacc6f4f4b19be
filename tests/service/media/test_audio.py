"""The field ``audio`` of the native API: files of sound in place of samples or spectrograms."""

import numpy as np
import pytest
import soxr

from tests.support.application import running
from tests.support.media import PADDED, sound_of, text_of, tone, write_echo_model

RATE, LENGTH = 16_000, 8_000
WAV2VEC2 = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": RATE, "do_normalize": False}
AST = {"feature_extractor_type": "ASTFeatureExtractor", "sampling_rate": RATE, "mean": -4.0, "std": 4.0}
MODELS = {
    "samples": (WAV2VEC2, (LENGTH,)),
    "normalized": ({**WAV2VEC2, "do_normalize": True}, (LENGTH,)),
    "masked": ({**WAV2VEC2, "return_attention_mask": True}, (LENGTH,)),
    "without a mask": ({**WAV2VEC2, "return_attention_mask": True}, (LENGTH,)),
    "spectrogram": (AST, (20, 16)),
    "plain": (None, (LENGTH,)),
    "clap": ({"feature_extractor_type": "ClapFeatureExtractor"}, (LENGTH,)),
}
PATH = "/v1/attention/samples"
SAMPLES = tone(0.3, RATE)
WAV = sound_of(SAMPLES, RATE)
FLAC = sound_of(SAMPLES, RATE, "FLAC", "PCM_16")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sounds")
    for name, (processor, shape) in MODELS.items():
        write_echo_model(folder / name / "1", "input_values", shape, processor, is_masked=name == "masked")
    with running(folder) as client:
        yield client


def padded(samples: np.ndarray) -> np.ndarray:
    return np.pad(samples, (0, LENGTH - len(samples)))


def heard(response) -> np.ndarray:
    """The samples that a model was run on."""
    assert response.status_code == 200, response.text
    return np.array(response.json()["output"], np.float32)


FILES = {  # the format, and how far a sample is from what was written
    "float": (("WAV", "FLOAT"), 0),
    "16 bits": (("WAV", "PCM_16"), 2**-15),
    "24 bits": (("WAV", "PCM_24"), 2**-23),
    "8 bits": (("WAV", "PCM_U8"), 2**-7),
    "FLAC": (("FLAC", "PCM_16"), 2**-15),
    "extensible": (("WAVEX", "PCM_16"), 2**-15),
}


@pytest.mark.parametrize(("file", "error"), FILES.values(), ids=FILES)
def test_formats(client, file, error):
    response = client.post(PATH, json={"audio": text_of(sound_of(SAMPLES, RATE, *file))})
    np.testing.assert_allclose(heard(response), padded(SAMPLES[:, 0]), rtol=0, atol=error)


def test_channels_are_averaged(client):
    stereo = tone(0.2, RATE, 2)
    response = client.post(PATH, json={"audio": text_of(sound_of(stereo, RATE))})
    np.testing.assert_array_equal(heard(response), padded(stereo.mean(axis=1, dtype=np.float32)))


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000, 96_000])
def test_other_rates(client, rate):
    samples = tone(0.3, rate)
    response = client.post(PATH, json={"audio": text_of(sound_of(samples, rate))})
    np.testing.assert_array_equal(heard(response), padded(soxr.resample(samples[:, 0], rate, RATE)))


def test_a_list_is_a_batch(client):
    texts = [text_of(WAV), text_of(sound_of(SAMPLES[:100], RATE, "FLAC", "PCM_24"))]
    response = client.post(PATH, json={"audio": [texts[0], {"base64": texts[1]}]})
    np.testing.assert_allclose(heard(response), [padded(SAMPLES[:, 0]), padded(SAMPLES[:100, 0])], rtol=0, atol=2**-23)


def test_a_model_is_told_which_samples_are_padding(client):
    expected = np.pad(SAMPLES[:, 0], (0, LENGTH - len(SAMPLES)), constant_values=PADDED)
    response = client.post("/v1/attention/masked", json={"audio": text_of(WAV)})
    np.testing.assert_array_equal(heard(response), expected)
    longest = sound_of(np.zeros(2 * LENGTH), 2 * RATE)
    response = client.post("/v1/attention/masked", json={"audio": [text_of(WAV), text_of(longest)]})
    np.testing.assert_array_equal(heard(response), [expected, np.zeros(LENGTH)])


def test_a_spectrogram(client):
    response = client.post("/v1/attention/spectrogram", json={"audio": text_of(sound_of(SAMPLES[:2000], RATE))})
    values = heard(response)
    assert values.shape == (20, 16)
    assert len({tuple(row) for row in values[11:].tolist()}) == 1  # 11 frames, then zeros, normalized
    assert len({tuple(row) for row in values[:11].tolist()}) == 11


REFUSED = {
    "no sound": ("samples", text_of(b"hello"), 415, "audio", "expected a file of WAV or FLAC"),
    "OGG": ("samples", text_of(sound_of(SAMPLES, RATE, "OGG", "VORBIS")), 415, "audio", "expected a file of WAV"),
    "too long": (
        "samples", [text_of(WAV), text_of(sound_of(tone(0.6, RATE), RATE))], 422, "audio[1]",
        "lasts 0.6 s, 9,600 samples at 16,000 a second; the model takes 1 to 8,000",
    ),
    "too short": (
        "spectrogram", text_of(sound_of(SAMPLES[:399], RATE)), 422, "audio", "the model takes 400 to 3,599",
    ),
    "no samples": ("samples", text_of(sound_of(SAMPLES[:0], RATE)), 422, "audio", "lasts 0 s"),
    "half a FLAC": (
        "samples", text_of(FLAC[: len(FLAC) // 2]), 422, "audio", "the file is truncated or damaged",
    ),
    "a header alone": ("samples", text_of(WAV[:16]), 422, "audio", "the file is truncated or damaged"),
    "many channels": ("samples", text_of(sound_of(np.zeros((9, 40)), RATE)), 422, "audio", "has 40 channels"),
    "slow": ("samples", text_of(sound_of(SAMPLES[:9], 10)), 422, "audio", "at 10 samples a second"),
    "NaN": (
        "samples", text_of(sound_of(np.float32([0, np.nan]), RATE)), 422, "audio", "a sample is not finite",
    ),
    "a sample too many": (
        "samples", text_of(sound_of(np.zeros(LENGTH * 2 + 1), RATE * 2)), 422, "audio", "8,001 samples at 16,000",
    ),
    "an overflow": (
        "normalized", text_of(sound_of(np.full(9, 3e38, np.float32), RATE)), 422, "audio", "they overflow float32",
    ),
    "half a WAV": ("samples", text_of(WAV[: len(WAV) // 2]), 422, "audio", "the file is truncated or damaged"),
    "a FLAC of a pipe": (
        "samples", text_of(FLAC[:22] + bytes(4) + FLAC[26:]), 422, "audio", "its header does not say how long it is",
    ),
    "a URL": ("samples", "https://example.com/a.wav", 422, "audio", "URLs are not loaded"),
    "without a file": ("plain", text_of(WAV), 422, "audio", "has no preprocessor_config.json; send input_values"),
    "without its mask": (
        "without a mask", text_of(WAV), 422, "audio", "an attention_mask, which the graph lacks (export it again)",
    ),
    "CLAP": ("clap", text_of(WAV), 422, "audio", "its feature extractor, ClapFeatureExtractor, is not supported"),
}  # fmt: skip


@pytest.mark.parametrize(("model", "audio", "status", "field", "reason"), REFUSED.values(), ids=REFUSED)
def test_files_that_are_refused(client, model, audio, status, field, reason):
    response = client.post(f"/v1/attention/{model}", json={"audio": audio})
    problem = response.json()
    assert (response.status_code, problem["field"]) == (status, field), problem
    assert reason in problem["detail"]


@pytest.mark.parametrize("length", [2**31 - 1, 2**32 - 1])
def test_a_wav_of_a_pipe(client, length):
    """Its header has the largest length, because it was written first: it is read to its end."""
    streamed = bytearray(sound_of(SAMPLES, RATE))
    for place in (4, streamed.index(b"data") + 4):
        streamed[place : place + 4] = length.to_bytes(4, "little")
    response = client.post(PATH, json={"audio": text_of(bytes(streamed))})
    np.testing.assert_array_equal(heard(response), padded(SAMPLES[:, 0]))
