"""Steps of generation by exported graphs, beside transformers' ``generate``."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import DynamicCache, EncoderDecoderCache

from export.hf.generation.verification import Steps
from export.verification.sessions import session

TOKENS = 12
PROMPT = [7, 40, 23, 11]
WEIGHTS_ERROR = 1e-4  # both are float32, and the scores of mT5, which it does not scale, are large


def check_generation(directory: Path, version: Path, family: str) -> dict[str, Any]:
    """Check that the graphs of ``version`` choose the tokens of ``generate``, with its weights; return their entry."""
    spec = json.loads(session(version / "model.onnx").get_modelmeta().custom_metadata_map["heed"])
    entry: dict[str, Any] = spec["generation"]
    two_stacks = entry["two_stacks"]
    model = getattr(transformers, spec["config"]["architectures"][0])
    model = model.from_pretrained(directory, attn_implementation="eager").eval()
    encoder = session(version / "encoder.onnx") if two_stacks else None
    steps = Steps(session(version / "decode.onnx"), encoder, [tuple(shape) for shape in entry["past"]])
    start = [model.generation_config.decoder_start_token_id] if two_stacks else []  # generate adds it where it lacks
    prompt = np.array([start + PROMPT])
    source = {model.main_input_name: _source(model, family)} if two_stacks else {}
    runs = steps.run([prompt], np.ones_like(prompt), steps.source(source), TOKENS - 1)
    tokens = [int(run["logits"][0].argmax()) for run in runs]
    given = {"decoder_input_ids": prompt, **source} if two_stacks else {"input_ids": prompt}
    cache = DynamicCache()  # of all positions; that of generate leaves out those before a sliding window
    generated = model.generate(
        **{name: torch.from_numpy(array) for name, array in given.items()}, max_new_tokens=TOKENS, do_sample=False,
        num_beams=1, eos_token_id=-1, pad_token_id=0, output_attentions=True, return_dict_in_generate=True,
        past_key_values=EncoderDecoderCache(cache, DynamicCache()) if two_stacks else cache,
    )  # fmt: skip
    assert tokens == generated.sequences[0, prompt.size :].tolist()
    kinds = {"weights": "decoder_attentions", "cross_weights": "cross_attentions"}
    for name, theirs in kinds.items() if two_stacks else {"weights": "attentions"}.items():
        for run, layers in zip(runs, generated[theirs], strict=True):
            expected = np.stack([layer.numpy()[..., -run["ids"].shape[1] :, :] for layer in layers])
            assert np.abs(run[name] - expected).max() <= WEIGHTS_ERROR, name
    return entry


def _source(model: transformers.PreTrainedModel, family: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if family == "whisper":
        return rng.standard_normal((1, model.config.num_mel_bins, 2 * model.config.max_source_positions), np.float32)
    return rng.integers(5, 60, (1, 9))
