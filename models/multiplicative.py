r"""Multiplicative attention without a softmax: :math:`(QK^\top)V`, which is :math:`Q(K^\top V)`.

For Q = K = V = X, :math:`(XX^\top)X`. Schmidhuber, "Learning to Control Fast-Weight Memories", 1992, see Schlag et al.,
"Linear Transformers Are Secretly Fast Weight Programmers", 2021, https://arxiv.org/abs/2102.11174.
"""

from typing import Any

import torch
from torch import Tensor, nn

from models import reference
from models.attention import AttentionOutputs, joined_mask, real
from models.block import Block, Output
from models.cosine import INPUTS, OUTPUT
from models.options import masks, scale
from models.precision import cast_to, upcast


class Multiplicative(nn.Module):
    """query [batch, heads, m, d_k], key [batch, heads, n, d_k], value [batch, heads, n, d_v]; no weights.

    ``masking`` are the other options of ``models.attention.joined_mask``. Weights are zero where attending is
    forbidden. Without ``masking`` the output needs no tensor of m times n.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: Tensor | float = 1.0,
        nonpad_kv_seqlen: Tensor | None = None,
        **masking: Any,
    ) -> AttentionOutputs:
        M, N, dtype = query.shape[2], key.shape[2], query.dtype
        mask, given_value, factors = None, value, None
        if masking or nonpad_kv_seqlen is not None:
            mask = joined_mask(M, N, nonpad_kv_seqlen=nonpad_kv_seqlen, **masking)
        if nonpad_kv_seqlen is not None:
            key = torch.where(real(nonpad_kv_seqlen[:, None, None, None], torch.arange(N)[:, None]), key, 0.0)
        if query.element_size() < 4:
            query = cast_to(upcast(query) * scale, dtype)
        else:
            # Normalised, and multiplied by the largest numbers last: a product of two of these may underflow although
            # that of all three does not.
            (query, q), (key, k), (value, v) = _normalised(query), _normalised(key), _normalised(value)
            factors = q * k * scale, q * k * scale * v
        weights = query @ key.transpose(-1, -2)
        allowed = torch.tensor(True) if mask is None else upcast(mask) > -torch.inf
        # Without a mask K^T V first, [B, H, D, E]: no tensor of m times n.
        output = torch.where(allowed, weights, 0.0) @ value if masking else query @ (key.transpose(-1, -2) @ value)
        if factors is not None:
            weights = weights * factors[0].to(dtype)
            output = (output.double() * factors[1]).to(dtype)
        if mask is not None:
            added = cast_to(torch.where(allowed, mask, 0.0), dtype)
            weights = torch.where(allowed, weights + added, 0.0)
            if "attn_mask" in masking:
                output = output + added.expand_as(weights) @ given_value
        return AttentionOutputs(output, weights, weights)


def _normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` divided by the largest number of each head, and that number in float64."""
    largest = x.abs().amax((2, 3), keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    return x / largest, largest.double()


BLOCK = Block(
    name="multiplicative",
    title="Multiplicative attention, without a softmax",
    formula=r"s\,(QK^\top)V",
    source="Schlag et al., Fast Weight Programmers, 2021, https://arxiv.org/abs/2102.11174",
    description="Weights are inner products times scale (s), so rows do not sum to 1. Time and memory are linear in n "
    "unless weights are requested, or a mask, a window or is_causal is given.",
    build=Multiplicative,
    reference=lambda _module, inputs, dtype: reference.multiplicative(**inputs, dtype=dtype),
    inputs={**INPUTS, "scale": scale(), **masks("heads")},
    outputs={
        "output": Output(OUTPUT, "The sum of the values, each times its weight."),
        "weights": Output(
            ("batch", "heads", "m", "n"),
            "The scaled inner products plus the mask, 0 where attending is forbidden; rows do not sum to 1.",
        ),
    },
    linear=True,
    rare=tuple(name for name in masks("heads") if name != "nonpad_kv_seqlen"),  # without them, no matrix for the output
)
