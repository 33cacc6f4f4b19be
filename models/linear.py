r"""Linear attention: :math:`\phi(q_i)\sum_j \phi(k_j)v_j^\top / \phi(q_i)\sum_j \phi(k_j)`, :math:`\phi` = elu + 1.

Katharopoulos et al., "Transformers are RNNs", 2020, https://arxiv.org/abs/2006.16236; the causal form sums over j <= i,
here by chunks: sums of whole chunks before, and the chunk's own triangle.

Shapes: B batch, H heads, M queries, N keys, D d_k, E d_v, C rows of a chunk, T chunks.
"""

import torch
from torch import Tensor, nn

from models import reference
from models.attention import Attended, real
from models.block import Block, Input, Output
from models.cosine import INPUTS, OUTPUT
from models.options import nonpad
from models.precision import narrow, wide

CHUNK = 64


class Linear(nn.Module):
    """query [batch, heads, m, d_k], key [batch, heads, n, d_k], value [batch, heads, n, d_v]; no weights."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: Tensor | bool = False,
        nonpad_kv_seqlen: Tensor | None = None,
    ) -> Attended:
        dtype = query.dtype
        q, k, value = _phi(wide(query)), _phi(wide(key)), wide(value)  # sums grow with n, past the most float16
        M, N = q.shape[2], k.shape[2]
        if nonpad_kv_seqlen is not None:
            k = torch.where(real(nonpad_kv_seqlen[:, None, None, None], torch.arange(N)[:, None]), k, 0.0)
        v1 = torch.cat([value, torch.ones_like(value[..., :1])], -1)  # a column of ones sums up the denominator
        kernel = q @ k.transpose(-1, -2)
        if isinstance(is_causal, Tensor):
            sums = torch.where(is_causal, _causal(q, k, v1), _full(q, k, v1))
        else:
            sums = _causal(q, k, v1) if is_causal else _full(q, k, v1)
        if isinstance(is_causal, Tensor) or is_causal:
            seen = torch.arange(N) <= torch.arange(M)[:, None]
            kernel = torch.where(seen | ~torch.as_tensor(is_causal), kernel, 0.0)
        output, weights = _divide(sums[..., :-1], sums[..., -1:]), _divide(kernel, kernel.sum(-1, keepdim=True))
        return Attended(narrow(output, dtype), narrow(weights, dtype), narrow(kernel, dtype))


def _phi(x: Tensor) -> Tensor:
    """elu(x) + 1, without the 1 that exp(x) - 1 + 1 would lose its digits to."""
    return torch.where(x > 0, x + 1, torch.exp(torch.clamp(x, max=0)))


def _divide(sums: Tensor, total: Tensor) -> Tensor:
    """Zero where there is nothing to divide by."""
    return torch.where(total > 0, sums / total, 0.0)


def _full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (k.transpose(-1, -2) @ v)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Row i sums over keys j <= i; keys past the last query are never reached."""
    M = q.shape[2]
    T = (M + CHUNK - 1) // CHUNK
    q_BHTCD, k_BHTCD, v_BHTCE = (_chunks(x, T) for x in (q, k, v))
    own = torch.tril(q_BHTCD @ k_BHTCD.transpose(-1, -2)) @ v_BHTCE
    sums_BHTDE = k_BHTCD.transpose(-1, -2) @ v_BHTCE
    before = torch.cumsum(torch.cat([torch.zeros_like(sums_BHTDE[:, :, :1]), sums_BHTDE], 2), 2)[:, :, :-1]
    return (own + q_BHTCD @ before).flatten(2, 3)[:, :, :M]


def _chunks(x: Tensor, T: int) -> Tensor:
    """[B, H, length, D] -> [B, H, T, C, D], cut or filled with zeros."""
    B, H, _, D = x.shape
    filled = torch.cat([x, x.new_zeros(B, H, T * CHUNK, D)], 2)[:, :, : T * CHUNK]
    return filled.reshape(B, H, T, CHUNK, D)


BLOCK = Block(
    name="linear",
    title="Linear attention",
    formula=r"\frac{\phi(q_i)\sum_j \phi(k_j)v_j^\top}{\phi(q_i)\sum_j \phi(k_j)},\quad \phi(x)=\mathrm{elu}(x)+1",
    source="Katharopoulos et al., Transformers are RNNs, 2020, https://arxiv.org/abs/2006.16236",
    description="Time and memory are linear in n unless the weights, the row-normalised kernel, are asked for.",
    build=Linear,
    reference=lambda _module, inputs, dtype: reference.linear_attention(**inputs, dtype=dtype),
    inputs={
        **INPUTS,
        "is_causal": Input((), "Query i attends to keys j <= i.", dtype="bool", default=False),
        "nonpad_kv_seqlen": nonpad(),
    },
    outputs={
        "output": Output(OUTPUT, "The values, averaged by the weights."),
        "weights": Output(("batch", "heads", "m", "n"), "The kernel, each row divided by its sum."),
        "scores": Output(("batch", "heads", "m", "n"), "The kernel phi(Q) phi(K)^T; 0 where attending is forbidden."),
    },
    linear=True,
)
