r"""Cosine attention: :math:`\mathrm{softmax}\left(s\,\frac{q\cdot k}{\|q\|\,\|k\|}\right)V`.

Graves et al., "Neural Turing Machines", 2014, https://arxiv.org/abs/1410.5401, content addressing (equations 5 and 6).
"""

from typing import Any

import torch
from torch import Tensor, nn

from models import reference
from models.attention import Attended, weigh
from models.block import Block, Input
from models.options import answers, masks
from models.precision import narrow, wide

EPS = 1e-8  # the least norm, as torch's cosine_similarity has it: a zero vector is like nothing


class Cosine(nn.Module):
    """query [batch, heads, m, d_k], key [batch, heads, n, d_k], value [batch, heads, n, d_v]; no weights."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scale: Tensor | float = 1.0, **options: Any
    ) -> Attended:
        q, k = narrow(_unit(query) * scale, query.dtype), narrow(_unit(key), key.dtype)
        return weigh(q @ k.transpose(-1, -2), value, **options)


def _unit(x: Tensor) -> Tensor:
    x = wide(x)  # in float16 squares would not fit, and EPS would be zero
    return x / torch.clamp(x.square().sum(-1, keepdim=True).sqrt(), min=EPS)


INPUTS = {
    "query": Input(("batch", "heads", "m", "d_k"), "What is asked."),
    "key": Input(("batch", "heads", "n", "d_k"), "What the queries meet."),
    "value": Input(("batch", "heads", "n", "d_v"), "What is averaged."),
}
OUTPUT = ("batch", "heads", "m", "d_v")

BLOCK = Block(
    name="cosine",
    title="Cosine attention",
    formula=r"\mathrm{softmax}\left(s\,\frac{QK^\top}{\|Q\|\,\|K\|}\right)V",
    source="Graves et al., Neural Turing Machines, 2014, https://arxiv.org/abs/1410.5401",
    description="Scores are cosines, so the length of a vector does not matter; scale sharpens them.",
    build=Cosine,
    reference=lambda _module, inputs, dtype: reference.cosine(**inputs, dtype=dtype),
    inputs={**INPUTS, "scale": Input((), "Multiplies the cosines.", default=1.0), **masks("heads")},
    outputs=answers(OUTPUT, "heads"),
)
