r"""Linear attention: :math:`\phi(q_i)\sum_j \phi(k_j)v_j^\top / \phi(q_i)\sum_j \phi(k_j)`, :math:`\phi` = elu + 1.

Katharopoulos et al., "Transformers are RNNs", 2020, https://arxiv.org/abs/2006.16236; the causal form sums over j <= i.
It is computed by chunks: the sum of all earlier chunks, plus the lower triangle of the query's own chunk.

Shapes: B batch, H heads, M queries, N keys, D d_k, E d_v, C rows of a chunk, T chunks.
"""

import torch
from torch import Tensor, nn

from models import reference
from models.attention import AttentionOutputs, real
from models.block import Block, Input, Output
from models.cosine import INPUTS, OUTPUT
from models.options import nonpad
from models.precision import cast_to, upcast

CHUNK = 64
MIN_SUM = 1e-36  # below this, the terms of a sum may have lost digits in float32


class Linear(nn.Module):
    """query [batch, heads, m, d_k], key [batch, heads, n, d_k], value [batch, heads, n, d_v]; no weights."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: Tensor | bool = False,
        nonpad_kv_seqlen: Tensor | None = None,
    ) -> AttentionOutputs:
        dtype = query.dtype
        query, key, value = upcast(query), upcast(key), upcast(value)  # sums over n may overflow in float16
        M, N = query.shape[2], key.shape[2]
        no_keys: Tensor | None = None
        top_query, top_key = query.amax(-1, keepdim=True), key.amax((2, 3), keepdim=True)
        if nonpad_kv_seqlen is None:
            k = _phi(key, top_key)
        else:
            nonpad_B111 = nonpad_kv_seqlen[:, None, None, None]
            is_real, no_keys = real(nonpad_B111, torch.arange(N)[:, None]), nonpad_B111 == 0
            top_key = torch.where(no_keys, 0.0, torch.where(is_real, key, -torch.inf).amax((2, 3), keepdim=True))
            k = torch.where(is_real, _phi(key, top_key), 0.0)
        q = _phi(query, top_query)
        v1 = torch.cat([value, torch.ones_like(value[..., :1])], -1)  # the column of ones gives the denominator
        kernel = q @ k.transpose(-1, -2)
        if isinstance(is_causal, Tensor):
            sums = torch.where(is_causal, _causal(q, k, v1), _full(q, k, v1))
        else:
            sums = _causal(q, k, v1) if is_causal else _full(q, k, v1)
        if isinstance(is_causal, Tensor) or is_causal:
            allowed = torch.arange(N) <= torch.arange(M)[:, None]
            kernel = torch.where(allowed | ~torch.as_tensor(is_causal), kernel, 0.0)
        output = _divide(sums[..., :-1], sums[..., -1:], no_keys)
        weights = _divide(kernel, kernel.sum(-1, keepdim=True), no_keys)
        zero = torch.zeros_like(top_key)
        scores = kernel * (_phi(top_query, zero) * _phi(top_key, zero))
        return AttentionOutputs(cast_to(output, dtype), cast_to(weights, dtype), cast_to(scores, dtype))


def _phi(x: Tensor, top: Tensor) -> Tensor:
    """phi(x) / phi(top), where phi(x) = elu(x) + 1 is exp(x) for x <= 0, and x + 1 for x > 0.

    With ``top`` the largest x, it cannot overflow, and numbers far below 0 do not underflow. Weights are ratios, so a
    common factor of a query's features, or of all keys, does not change them.
    """
    return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0) - top.clamp(max=0))) / (top.clamp(min=0) + 1)


def _divide(sums: Tensor, total: Tensor, no_keys: Tensor | None) -> Tensor:
    """``sums`` / ``total``: zero for batch rows with ``no_keys``, NaN where ``total`` has underflowed."""
    divided = sums / torch.where(total < MIN_SUM, torch.nan, total)
    return divided if no_keys is None else torch.where(no_keys, 0.0, divided)


def _full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ (k.transpose(-1, -2) @ v)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Row i is the sum over keys j <= i; keys after the last query are not used."""
    M = q.shape[2]
    T = (M + CHUNK - 1) // CHUNK
    q_BHTCD, k_BHTCD, v_BHTCE = (_chunks(x, T) for x in (q, k, v))
    own = torch.tril(q_BHTCD @ k_BHTCD.transpose(-1, -2)) @ v_BHTCE
    sums_BHTDE = k_BHTCD.transpose(-1, -2) @ v_BHTCE
    before = torch.cumsum(torch.cat([torch.zeros_like(sums_BHTDE[:, :, :1]), sums_BHTDE], 2), 2)[:, :, :-1]
    return (own + q_BHTCD @ before).flatten(2, 3)[:, :, :M]


def _chunks(x: Tensor, T: int) -> Tensor:
    """[B, H, length, D] -> [B, H, T, C, D], cut or padded with zeros."""
    B, H, _, D = x.shape
    padded = torch.cat([x, x.new_zeros(B, H, T * CHUNK, D)], 2)[:, :, : T * CHUNK]
    return padded.reshape(B, H, T, CHUNK, D)


BLOCK = Block(
    name="linear",
    title="Linear attention",
    formula=r"\frac{\phi(q_i)\sum_j \phi(k_j)v_j^\top}{\phi(q_i)\sum_j \phi(k_j)},\quad \phi(x)=\mathrm{elu}(x)+1",
    source="Katharopoulos et al., Transformers are RNNs, 2020, https://arxiv.org/abs/2006.16236",
    description="Time and memory are linear in n unless the weights, the row-normalised kernel, are requested.",
    build=Linear,
    reference=lambda _module, inputs, dtype: reference.linear_attention(**inputs, dtype=dtype),
    inputs={
        **INPUTS,
        "is_causal": Input((), "Query i attends to keys j <= i.", dtype="bool", default=False),
        "nonpad_kv_seqlen": nonpad(),
    },
    outputs={
        "output": Output(OUTPUT, "The values, averaged by the weights."),
        "weights": Output(("batch", "heads", "m", "n"), "The kernel, each row divided by its sum, or all zero."),
        "scores": Output(("batch", "heads", "m", "n"), "The kernel phi(Q) phi(K)^T; 0 where attending is forbidden."),
    },
    linear=True,
)
