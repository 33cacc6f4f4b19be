"""Blocks from checkpoints, not exported, and small models of transformers to make these of."""

import json
import os
import re

import numpy as np
import pytest
import torch

from export.__main__ import main
from export.weights.checkpoint import CheckpointError, load
from export.weights.family import family_of, from_checkpoint
from export.weights.naming import mapped, own_names

os.environ["HF_HUB_OFFLINE"] = "1"
SIZES = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 12,
    "vocab_size": 30,
    "max_position_embeddings": 20,
    "type_vocab_size": 2,
}


def run(*arguments):
    """The exit status of ``heed export`` with these arguments."""
    return main([str(argument) for argument in arguments])


def refused(text):
    return pytest.raises(CheckpointError, match=re.escape(text))


def imported(kind, path, prefix=None, mapping=None, **settings):
    """The block with the weights of ``path``."""
    starts = family_of(kind).starts
    checkpoint = load(path)
    named = mapped(checkpoint.tensors, mapping, prefix) if mapping else own_names(checkpoint.tensors, starts, prefix)
    return from_checkpoint(kind, "mine", checkpoint, named, {key: str(value) for key, value in settings.items()})


def reference(block, **inputs):
    """The outputs of the block's formula in float64."""
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    return block.reference(block.build(), arrays, np.float64)


def transformer(name, **config):
    """A small model of transformers with random weights."""
    import transformers

    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    config = model_class.config_class(**{**SIZES, "layer_norm_eps": 1e-3, "attn_implementation": "eager", **config})
    module = model_class(config).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def bert_folder(folder, **changed):
    """Write a BERT with these settings in its config.json; one of None is removed."""
    transformer("BertModel").save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps({key: x for key, x in settings.items() if x is not None}))


def attention_module(*sizes, **options):
    """A ``torch.nn.MultiheadAttention`` with random biases, too."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(*sizes, batch_first=True, **options).eval()
    torch.nn.init.normal_(module.in_proj_bias)
    torch.nn.init.normal_(module.out_proj.bias)
    return module


def assert_attends_alike(module, actual, x):
    """``actual`` are the output and the weights, if any, of the attention of torch in float64."""
    with torch.no_grad():
        output, weights = module.double()(*[x.double()] * 3, average_attn_weights=False)
    np.testing.assert_allclose(actual["output"], output, atol=1e-9)
    np.testing.assert_allclose(actual["weights"], weights, atol=1e-9)
