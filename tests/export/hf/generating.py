"""Generation over HTTP, beside transformers' ``generate``."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
import transformers
from transformers import DynamicCache, EncoderDecoderCache

from export.hf.verification.float64 import in_float64
from export.verification.sessions import session

TOKENS = 12
PROMPT = [7, 40, 23, 11]
WEIGHTS_ERROR = 3e-6
SLACK = 4  # of a few numbers, whose largest error is random
KINDS = {"weights": "decoder_attentions", "cross_weights": "cross_attentions"}


def metadata_entry(version: Path, name: str) -> dict[str, Any]:
    """How the model of ``version`` generates, or takes interventions, as its metadata says."""
    spec = json.loads(session(version / "model.onnx").get_modelmeta().custom_metadata_map["heed"])
    entry: dict[str, Any] = spec[name]
    return entry


def check_generation(client: httpx.Client, model: transformers.PreTrainedModel, family: str) -> None:
    """Check that the server's ``mine`` chooses the tokens of ``generate`` with its weights, also in a stream.

    Weights are within WEIGHTS_ERROR of those in float64, or within SLACK times the error of transformers in float32.
    """
    two_stacks = model.config.is_encoder_decoder
    start = [model.generation_config.decoder_start_token_id] if two_stacks else []  # generate adds it where it lacks
    prompt = np.array([start + PROMPT])
    source = {model.main_input_name: encoder_input(model, family)} if two_stacks else {}
    given = {"decoder_input_ids": prompt, **source} if two_stacks else {"input_ids": prompt}
    plain = _generated(model, given, prompt, two_stacks)
    model.double()
    with in_float64():
        exact = _generated(model, given, prompt, two_stacks)
    kinds = [name for name in KINDS if name in exact]
    body = {name: array[0].tolist() for name, array in given.items()} | {
        "max_new_tokens": TOKENS, "ignore_eos": True, "outputs": kinds
    }  # fmt: skip
    answer = client.post("/v1/generate/mine", json=body)
    assert answer.status_code == 200, answer.text
    tokens = answer.json()["generated"]
    assert [token["id"] for token in tokens] == exact["ids"] == plain["ids"]
    for name in kinds:
        answered = [np.array(token[name]) for token in tokens]
        own = max(np.abs(one - right).max() for one, right in zip(plain[name], exact[name], strict=True))
        for weights, expected in zip(answered, exact[name], strict=True):
            assert weights.shape == expected.shape
            assert np.abs(weights - expected).max() <= max(WEIGHTS_ERROR, SLACK * own), name
    events = client.post("/v1/generate/mine", json=body | {"stream": True}).text.strip().split("\n\n")
    streamed = [json.loads(event.partition("data: ")[2]) for event in events]
    assert streamed[:-1] == tokens


def _generated(
    model: transformers.PreTrainedModel, given: dict[str, np.ndarray], prompt: np.ndarray, two_stacks: bool
) -> dict[str, Any]:
    """The new tokens, and of each the weights of the query that predicted it: [layers, heads, 1, keys]."""
    cache = DynamicCache()  # of all positions; that of generate leaves out those before a sliding window
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    dtype = next(model.parameters()).dtype
    generated = model.generate(
        **{name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()},
        max_new_tokens=TOKENS, do_sample=False, num_beams=1, eos_token_id=-1, pad_token_id=0,
        output_attentions=True, return_dict_in_generate=True,
        past_key_values=EncoderDecoderCache(cache, DynamicCache()) if two_stacks else cache,
    )  # fmt: skip
    kinds = KINDS if two_stacks else {"weights": "attentions"}
    weights = {
        name: [np.stack([layer[0, :, -1:].numpy() for layer in layers]) for layers in generated[theirs]]
        for name, theirs in kinds.items()
    }
    return {"ids": generated.sequences[0, prompt.size :].tolist(), **weights}


def encoder_input(model: transformers.PreTrainedModel, family: str) -> np.ndarray:
    """A random input of the encoder: token ids, a spectrogram or a picture."""
    rng = np.random.default_rng(0)
    if family == "whisper":
        return rng.standard_normal((1, model.config.num_mel_bins, 2 * model.config.max_source_positions), np.float32)
    if model.main_input_name == "pixel_values":
        size = model.config.encoder.image_size
        return rng.standard_normal((1, 3, *(size if isinstance(size, (list, tuple)) else (size, size))), np.float32)
    return rng.integers(5, 60, (1, 9))
