"""Positions of queries and keys: rotary embeddings, linear biases, documents; and the inputs for them.

Rotary embeddings: Su et al., "RoFormer", 2021, https://arxiv.org/abs/2104.09864, equation 34. Linear biases: Press et
al., "Train Short, Test Long" (ALiBi), 2022, https://arxiv.org/abs/2108.12409. Sinks: gpt-oss (2025,
https://arxiv.org/abs/2508.10925), a learned form of Xiao et al., "Efficient Streaming Language Models with Attention
Sinks", 2023, https://arxiv.org/abs/2309.17453.

Shapes: B batch, H heads, M queries, N keys, D d_k. A tensor of one row, head or position stands for all of them.
"""

import torch
from torch import Tensor

from models.block import Dim, Input
from models.precision import cast_to, upcast

MAX_POSITION = 2**53  # larger whole numbers are rounded in float64, in which angles are computed


def inputs(heads: Dim, queries: str = "m", keys: str = "n") -> dict[str, Input]:
    """The inputs that say where queries and keys stand, for scores [heads, queries, past + keys]."""
    return {
        "attn_bias": Input(
            ("1|batch", f"1|{heads}", f"1|{queries}", f"1|past + {keys}"),
            "Added to the scores before softcap, which bounds their sum; attn_mask is added after it.",
            default=0.0,
        ),
        "alibi_slopes": Input(
            (f"1|{heads}",),
            "ALiBi: slope * |i + offset - j| is subtracted from the score of query i and key j, after softcap; offset "
            "as defined for is_causal. Slopes are positive.",
            default=0.0,
        ),
        "sinks": Input(
            (f"1|{heads}",),
            "One extra score per head, with no key: it joins the softmax's denominator, so weights sum to less than 1.",
            default=-float("inf"),
        ),
        "query_document_ids": Input(
            ("1|batch", f"1|{queries}"),
            "The document of each query: it may attend only to keys with the same number in document_ids.",
            dtype="int64",
            default=0,
            needs=("document_ids",),
        ),
        "document_ids": Input(
            ("1|batch", f"1|past + {keys}"),
            "The document of each key, those of the past first.",
            dtype="int64",
            default=0,
            needs=("query_document_ids",),
        ),
        "rope_theta": Input(
            (),
            "Rotary embedding of query and key, before the scores: features are rotated in pairs, pair k by the "
            "position times rope_theta^(-2k/d_k); 0 = off. Keys in present_key are rotated, and those in past_key are "
            "not rotated again. With an odd d_k the last feature is not rotated, and the divisor is d_k - 1.",
            default=0.0,
            minimum=0,
        ),
        "rope_interleaved": Input(
            (),
            "Pairs of features are (2k, 2k + 1); by default (k, k + d_k/2), as in Llama.",
            dtype="bool",
            default=False,
        ),
        "query_positions": Input(
            ("1|batch", f"1|{queries}"),
            "The position of each query for rope_theta; i + offset when not given, offset as defined for is_causal.",
            dtype="int64",
            default=-1,
            minimum=0,
            maximum=MAX_POSITION,
            needs=("rope_theta",),
        ),
        "key_positions": Input(
            ("1|batch", f"1|{keys}"),
            "The position of each new key for rope_theta; j + the length of the past when not given.",
            dtype="int64",
            default=-1,
            minimum=0,
            maximum=MAX_POSITION,
            needs=("rope_theta",),
        ),
    }


def rotated(
    x: Tensor, positions: Tensor | None, offset: Tensor | int, theta: Tensor, interleaved: Tensor | bool
) -> Tensor:
    """``x`` [B, H, M, D] with its pairs of features rotated by ``positions`` [B, M]; unchanged if ``theta`` is 0.

    A position that is None or negative is the index plus ``offset``, a number or [B, 1]. Angles are computed in
    float64, because in float32 those of late positions would lose digits.
    """
    M, half = x.shape[2], x.shape[3] // 2
    indices = torch.arange(M) + offset
    positions = indices if positions is None else torch.where(positions < 0, indices, positions)
    power = theta.double() ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions[..., None, :, None] * torch.where(theta > 0, power, 0.0)
    cos, sin = angles.cos().to(upcast(x).dtype), angles.sin().to(upcast(x).dtype)

    pairs, rest = upcast(x[..., : 2 * half]), x[..., 2 * half :]
    halves = pairs.reshape(*x.shape[:3], 2, half).transpose(-1, -2)
    interleaved = torch.as_tensor(interleaved)
    a, b = torch.where(interleaved, pairs.reshape(*x.shape[:3], half, 2), halves).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1)
    turned = torch.where(interleaved, turned.flatten(-2), turned.transpose(-1, -2).flatten(-2))
    return torch.cat([cast_to(turned, x.dtype), rest], -1)


def linear_bias(slopes: Tensor, M: int, N: int, offset: Tensor | int) -> Tensor:
    """-slope * |i + offset - j|, [B, H, M, N], for ``slopes`` [H]; ``offset`` is a number or [B, 1, 1, 1]."""
    distance = (torch.arange(M)[:, None] + offset - torch.arange(N)).abs()
    return -upcast(slopes)[:, None, None] * distance


def same_document(query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Whether query [B, M] and key [B, N] are of one document, [B, 1, M, N]."""
    return query_ids[:, None, :, None] == key_ids[:, None, None, :]
