r"""Efficient attention: :math:`\rho_q(Q)\,(\rho_k(K)^\top V)`, with softmax over features of Q and over positions of K.

Shen et al., "Efficient Attention: Attention with Linear Complexities", 2018, https://arxiv.org/abs/1812.01243.
"""

import torch
from torch import Tensor, nn

from models import reference
from models.attention import AttentionOutputs, real
from models.block import Block, Output
from models.cosine import INPUTS, OUTPUT
from models.options import nonpad
from models.precision import cast_to, upcast


class Efficient(nn.Module):
    """query [batch, heads, m, d_k], key [batch, heads, n, d_k], value [batch, heads, n, d_v]; no weights."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, nonpad_kv_seqlen: Tensor | None = None
    ) -> AttentionOutputs:
        dtype = query.dtype
        query, key, value = upcast(query), upcast(key), upcast(value)  # weights may underflow in float16
        if nonpad_kv_seqlen is None:
            k = torch.softmax(key, 2)
        else:
            is_real = real(nonpad_kv_seqlen[:, None, None, None], torch.arange(key.shape[2])[:, None])
            k = torch.where(is_real, torch.softmax(torch.where(is_real, key, -torch.inf), 2), 0.0)
        q = torch.softmax(query, -1)
        weights = cast_to(q @ k.transpose(-1, -2), dtype)
        return AttentionOutputs(cast_to(q @ (k.transpose(-1, -2) @ value), dtype), weights, weights)


BLOCK = Block(
    name="efficient",
    title="Efficient attention",
    formula=r"\mathrm{softmax}_{d}(Q)\left(\mathrm{softmax}_{n}(K)^\top V\right)",
    source="Shen et al., Efficient Attention, 2018, https://arxiv.org/abs/1812.01243",
    description="One softmax over the features of a query, one over the keys; time and memory are linear in n unless "
    "the weights are requested.",
    build=Efficient,
    reference=lambda _module, inputs, dtype: reference.efficient(**inputs, dtype=dtype),
    inputs={**INPUTS, "nonpad_kv_seqlen": nonpad()},
    outputs={
        "output": Output(OUTPUT, "The values, averaged by the weights."),
        "weights": Output(("batch", "heads", "m", "n"), "softmax(Q) softmax(K)^T: each row sums to 1, or is all zero."),
    },
    linear=True,
)
