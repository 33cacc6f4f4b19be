"""Sound that is shorter than a model takes has the outputs and weights of transformers, whose model is given a mask."""

import json

import numpy as np
import pytest
import torch
import transformers

from export.__main__ import main
from export.hf.verification.float64 import in_float64
from tests.support.application import running
from tests.support.families import CONVOLUTIONS, LAYERS, Family, build
from tests.support.media import sound_of, text_of, tone

pytestmark = [pytest.mark.extended, pytest.mark.filterwarnings("ignore")]
LENGTH, RATE = 800, 16_000
CONFIG = {**LAYERS, **CONVOLUTIONS, "vocab_size": 60, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
MODELS = ["Data2VecAudioForCTC", pytest.param("HubertForSequenceClassification", marks=pytest.mark.family)]


@pytest.mark.parametrize("name", MODELS)
def test_shorter_sound(name, tmp_path):
    model = build(Family(name, CONFIG))
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    for part in (model, extractor):
        part.save_pretrained(tmp_path / "model")
    repository = tmp_path / "repository"
    given = ["--input", f"input_values={LENGTH}", "--model-repository", str(repository), "--name", "mine"]
    assert main(["hf", str(tmp_path / "model"), *given]) == 0
    sounds = [tone(samples / RATE, RATE)[:, 0] for samples in (LENGTH, 500, 90)]
    with running(repository) as client:
        files = [text_of(sound_of(sound, RATE)) for sound in sounds]
        response = client.post("/v1/attention/mine", json={"audio": files})
        assert response.status_code == 200, response.text
        alone = client.post("/v1/attention/mine", json={"audio": files[1]}).json()
        mean = [{"at": "hidden", "layers": 1, "replace": "mean"}]
        changed = client.post("/v1/attention/mine", json={"audio": files[1], "interventions": mean})
    expected = _original(model.double(), extractor(sounds, sampling_rate=RATE, **PADDING))
    for output, array in zip(("output", "weights"), expected, strict=True):
        actual = np.array(response.json()[output])
        np.testing.assert_allclose(actual, array, rtol=0, atol=1e-5 * np.abs(array).max())
        axis = 1 if output == "weights" else 0  # the batch
        np.testing.assert_allclose(alone[output], actual.take(1, axis), atol=1e-5)
    assert changed.status_code == 200, changed.text
    assert json.loads(changed.text)["output"] != alone["output"]


PADDING = {"padding": "max_length", "max_length": LENGTH, "return_tensors": "pt"}


def _original(model, inputs):
    """Output and weights of transformers in float64."""
    model.set_attn_implementation("eager")
    with in_float64(), torch.inference_mode():
        values = inputs["input_values"].double()
        result = model(values, attention_mask=inputs["attention_mask"], output_attentions=True)
    output = result.last_hidden_state if "last_hidden_state" in result else result.logits
    return output.numpy(), np.stack([layer.numpy() for layer in result.attentions])
