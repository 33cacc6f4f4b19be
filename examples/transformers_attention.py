"""Heed as the attention of an unchanged transformers model: ``attn_implementation="heed"`` gives every layer's weights.

usage: .venv/bin/python examples/transformers_attention.py [DIR]      (needs a server: make serve)

DIR is a model's directory; without it, a small GPT-2 with random weights answers.
"""

import sys

import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, GPT2Config, GPT2Model
from transformers.masking_utils import eager_mask

from heed_client import Client, HeedError

heed = Client()


def attend(_module, query, key, value, attention_mask, scaling=None, **_):
    """One layer's attention: [batch, heads, n, d] to the output, [batch, n, heads, d], and the weights."""
    options = {} if attention_mask is None else {"attn_mask": attention_mask, "additive_mask": True}
    answer = heed.attend("scaled_dot_product", query=query, key=key, value=value, scale=scaling, **options)
    return torch.from_numpy(answer.output).transpose(1, 2).contiguous(), torch.from_numpy(answer.weights)


AttentionInterface.register("heed", attend)
AttentionMaskInterface.register("heed", eager_mask)

torch.manual_seed(0)
if len(sys.argv) > 1:
    model = AutoModel.from_pretrained(sys.argv[1], attn_implementation="heed", local_files_only=True).eval()
else:
    sizes = {"n_layer": 3, "n_head": 4, "n_embd": 32, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2Model(GPT2Config(**sizes, attn_implementation="heed")).eval()
input_ids = torch.arange(5, 17)[None]
try:
    with torch.no_grad(), heed:
        weights = model(input_ids, output_attentions=True).attentions
except HeedError as error:
    sys.exit(str(error))
with torch.no_grad():
    model.set_attn_implementation("eager")
    expected = model(input_ids, output_attentions=True).attentions
for layer, (ours, theirs) in enumerate(zip(weights, expected, strict=True)):
    difference = (ours - theirs).abs().max().item()
    print(f"layer {layer}: weights {[*ours.shape]}, largest difference from eager attention {difference:.1g}")
    assert difference < 1e-5
