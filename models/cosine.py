r"""Cosine attention: :math:`\mathrm{softmax}\left(s\,\frac{q\cdot k}{\|q\|\,\|k\|}\right)V`.

Graves et al., "Neural Turing Machines", 2014, https://arxiv.org/abs/1410.5401, content addressing (equations 5 and 6).
"""

from typing import Any

import torch
from torch import Tensor, nn

from models import reference
from models.attention import AttentionOutputs, masked_softmax
from models.block import Block, Input
from models.options import attention_outputs, masks, scale
from models.precision import cast_to, upcast


class Cosine(nn.Module):
    """query [batch, heads, m, d_k], key [batch, heads, n, d_k], value [batch, heads, n, d_v]; no weights."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scale: Tensor | float = 1.0, **options: Any
    ) -> AttentionOutputs:
        q, k = cast_to(_unit(query) * scale, query.dtype), cast_to(_unit(key), key.dtype)
        return masked_softmax(q @ k.transpose(-1, -2), value, **options)


def _unit(x: Tensor) -> Tensor:
    """Each row of ``x`` divided by its length; a row of zeros stays zero.

    It is divided by its largest number first, so that no square overflows or underflows.
    """
    x = upcast(x)
    largest = x.abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1.0)
    return x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=1)  # less than 1 only in a row of zeros


INPUTS = {
    "query": Input(("batch", "heads", "m", "d_k"), "The queries."),
    "key": Input(("batch", "heads", "n", "d_k"), "The keys that the queries are compared with."),
    "value": Input(
        ("batch", "heads", "n", "d_v"),
        "The values that the weights average; needed only for output.",
        only_for=("output",),
    ),
}
OUTPUT = ("batch", "heads", "m", "d_v")

BLOCK = Block(
    name="cosine",
    title="Cosine attention",
    formula=r"\mathrm{softmax}_j\left(s\,\frac{q_i\cdot k_j}{\|q_i\|\,\|k_j\|}\right)V",
    source="Graves et al., Neural Turing Machines, 2014, https://arxiv.org/abs/1410.5401",
    description="Scores are cosines, so the length of a vector does not matter (one of zeros has the score 0); scale "
    "(s) sharpens them.",
    build=Cosine,
    reference=lambda _module, inputs, dtype: reference.cosine(**inputs, dtype=dtype),
    inputs={**INPUTS, "scale": scale(), **masks("heads")},
    outputs=attention_outputs(OUTPUT, "heads"),
    any_length=("query", "key"),
)
