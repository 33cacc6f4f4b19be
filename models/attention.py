r"""The one place where attention is computed: :math:`\mathrm{softmax}(s\,QK^\top + M)\,V`. Every block calls it.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762 (equation 1); the options follow
torch's ``scaled_dot_product_attention`` and the ONNX ``Attention`` operator.

Shapes: B batch, H heads, K kv_heads (H is a multiple of K), M queries, N keys with the past, P past, D d_k, E d_v.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from models.precision import narrow, wide


class Attended(NamedTuple):
    """What a block answers: torch tensors of the shapes named here; None where a block has no such thing."""

    output: Tensor  # [B, H, M, E]
    weights: Tensor  # [B, H, M, N] after the softmax; rows sum to 1, or are all zero where nothing may be attended to
    scores: Tensor  # [B, H, M, N] before the softmax, masks applied
    present_key: Tensor | None = None  # [B, K, N, D] past and new keys, joined
    present_value: Tensor | None = None  # [B, K, N, E]


# What export puts in place of the formula for a graph that answers ``output`` alone (export/fast_path.py): called with
# the query already scaled, key and value joined with the past, and the options by name, "past" (its length) among them.
Kernel = Callable[[Tensor, Tensor, Tensor, dict[str, Tensor | bool | int | float | None]], Tensor]
KERNEL: ContextVar[Kernel | None] = ContextVar("KERNEL", default=None)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: Tensor | bool = False,
    left_window_size: Tensor | int = -1,
    right_window_size: Tensor | int = -1,
    scale: Tensor | float | None = None,
    softcap: Tensor | float = 0.0,
    nonpad_kv_seqlen: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> Attended:
    """Attend from ``query`` [B, H, M, D] over ``key`` [B, K, N, D] and ``value`` [B, K, N, E].

    An option given as a number is fixed in an exported graph, and costs nothing there when it is off; given as a
    tensor it stays an input. As tensors, ``scale`` NaN, window sizes and ``nonpad_kv_seqlen`` of -1 mean "not given".

    Args:
        attn_mask: true = may attend; or float, added to the scores. Broadcasts to [B, H, M, N].
        is_causal: query i sees keys j <= i + offset; offset is the length of the past, or nonpad_kv_seqlen - M.
        left_window_size: query i sees keys j >= i + offset - left_window_size.
        right_window_size: query i sees keys j <= i + offset + right_window_size.
        scale: multiplies the scores; 1/sqrt(D) when not given.
        softcap: scores become softcap * tanh(scores / softcap) before the mask; 0 = off.
        nonpad_kv_seqlen: [B], how many leading keys of each row are real.
        past_key, past_value: [B, K, P, D] and [B, K, P, E], joined before key and value.

    Raises:
        RuntimeError: torch's, where shapes do not agree.
    """
    past = 0 if past_key is None else past_key.shape[2]
    key, value = _join(past_key, key), _join(past_value, value)
    B, H, M, D = query.shape
    K, N = key.shape[1], key.shape[2]

    if (kernel := KERNEL.get()) is not None:
        said = {
            "attn_mask": attn_mask,
            "is_causal": is_causal,
            "scale": scale,
            "softcap": softcap,
            "nonpad_kv_seqlen": nonpad_kv_seqlen,
        }
        window = {"left_window_size": left_window_size, "right_window_size": right_window_size}
        nothing = query.new_empty(0)
        return Attended(kernel(query, key, value, {**said, **window, "past": past}), nothing, nothing, key, value)

    query = nan_if_overflowing(scaled(query, scale), key)
    # Heads of one group lie next to each other, so grouped queries are only a reshape: H/K * M rows for each key head.
    q_BKGD = query.reshape(B, K, -1, D)
    scores_BHMN = (q_BKGD @ key.transpose(-1, -2)).reshape(B, H, M, N)
    if isinstance(softcap, Tensor) or softcap > 0:
        capped = softcap * torch.tanh(scores_BHMN / softcap)
        scores_BHMN = torch.where(torch.as_tensor(softcap) > 0, capped, scores_BHMN)

    attended = weigh(
        scores_BHMN,
        value,
        past=past,
        attn_mask=attn_mask,
        is_causal=is_causal,
        left_window_size=left_window_size,
        right_window_size=right_window_size,
        nonpad_kv_seqlen=nonpad_kv_seqlen,
    )
    return attended._replace(present_key=key, present_value=value)


def weigh(
    scores: Tensor,
    value: Tensor,
    *,
    past: int = 0,
    attn_mask: Tensor | None = None,
    is_causal: Tensor | bool = False,
    left_window_size: Tensor | int = -1,
    right_window_size: Tensor | int = -1,
    nonpad_kv_seqlen: Tensor | None = None,
) -> Attended:
    """Mask ``scores`` [B, H, M, N], take their softmax, and average ``value`` [B, K, N, E] by it.

    The options are those of ``attention``; ``past`` is how many of the N keys are of the past.
    """
    B, H, M, N = scores.shape
    K, E = value.shape[1], value.shape[3]
    mask = _mask(M, N, past, attn_mask, is_causal, left_window_size, right_window_size, nonpad_kv_seqlen)
    if mask is None:
        weights = torch.softmax(scores, -1)
    else:
        scores = scores + narrow(mask, scores.dtype)
        # Of the mask, not the scores: an overflow stays visible. In float32, as CUDA compares no bfloat16.
        nothing = wide(mask).amax(-1, keepdim=True) == -torch.inf
        weights = torch.where(nothing, 0.0, torch.softmax(scores, -1))
    output = (weights.reshape(B, K, -1, N) @ value).reshape(B, H, M, E)
    return Attended(output, weights, scores)


def real(nonpad_B111: Tensor, j: Tensor) -> Tensor:
    """Which keys ``j``, [N] or [N, 1], are real: the first ``nonpad_B111`` of each batch row; all where it is -1."""
    return (j < nonpad_B111) | (nonpad_B111 < 0)


def nan_if_overflowing(query: Tensor, key: Tensor) -> Tensor:
    """``query`` [batch, ..., D]; NaN in each batch row where an inner product with ``key`` could overflow.

    A sum that overflows on its way may end as -inf, which is a key that is never attended to: a wrong answer that looks
    right. No sum is larger than D times the largest number of the queries times the largest of the keys.
    """
    if query.dtype == torch.float16:  # added up in float32, which holds any sum of its products
        return query
    axes = tuple(range(1, query.ndim))
    largest = wide(query).abs().amax(axes, keepdim=True) * wide(key).abs().amax(axes, keepdim=True)
    return query + narrow(0 * (query.shape[-1] * largest), query.dtype)  # 0 times infinity is NaN


def _join(past: Tensor | None, new: Tensor) -> Tensor:
    """The past [B, K, P, D] or broadcastable, before the new [B, K, N, D]."""
    if past is None:
        return new
    B, K, _, D = new.shape
    return torch.cat([past.expand(B, K, -1, D), new], 2)


def scaled(query: Tensor, scale: Tensor | float | None) -> Tensor:
    """``query`` [..., D] times ``scale``, which is 1/sqrt(D) where it is None or NaN."""
    d_k = query.shape[-1]
    if isinstance(scale, Tensor):  # float32, and may be more than the type of the query holds
        return narrow(wide(query) * torch.where(torch.isnan(scale), d_k**-0.5, scale), query.dtype)
    return query * (d_k**-0.5 if scale is None else scale)


def _mask(
    M: int,
    N: int,
    past: int,
    attn_mask: Tensor | None,
    is_causal: Tensor | bool,
    left_window_size: Tensor | int,
    right_window_size: Tensor | int,
    nonpad_kv_seqlen: Tensor | None,
) -> Tensor | None:
    """All that forbids, as one float tensor to add to the scores, broadcastable to theirs; None if nothing does."""
    i = torch.arange(M)[:, None]
    j = torch.arange(N)
    offset: Tensor | int = past
    rules = []  # each one: where attending is allowed
    if nonpad_kv_seqlen is not None:
        nonpad_B111 = nonpad_kv_seqlen[:, None, None, None]
        rules.append(real(nonpad_B111, j))
        offset = torch.where(nonpad_B111 < 0, past, nonpad_B111 - M)
    if isinstance(is_causal, Tensor):
        rules.append((j <= i + offset) | ~is_causal)
    elif is_causal:
        rules.append(j <= i + offset)
    if isinstance(left_window_size, Tensor) or left_window_size >= 0:
        rules.append((j >= i + offset - left_window_size) | (torch.as_tensor(left_window_size) < 0))
    if isinstance(right_window_size, Tensor) or right_window_size >= 0:
        rules.append((j <= i + offset + right_window_size) | (torch.as_tensor(right_window_size) < 0))

    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -torch.inf)
    if not rules:
        return attn_mask
    allowed = rules[0]
    for rule in rules[1:]:
        allowed = allowed & rule
    return torch.where(allowed, 0.0 if attn_mask is None else attn_mask, -torch.inf)
