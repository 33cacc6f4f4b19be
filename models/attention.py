r"""Attention, the function that blocks share: :math:`\mathrm{softmax}(s\,QK^\top + M)\,V`.

Vaswani et al., "Attention Is All You Need", 2017, https://arxiv.org/abs/1706.03762 (equation 1); the options follow
torch's ``scaled_dot_product_attention`` and the ONNX ``Attention`` operator.

Blocks with other scores call only its second half, ``masked_softmax``.

Shapes: B batch, H heads, K kv_heads (H is a multiple of K), M queries, N keys with the past, P past, D d_k, E d_v.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from models.positions import linear_bias, rotated, same_document
from models.precision import cast_to, upcast


class AttentionOutputs(NamedTuple):
    """The outputs of a block, with the shapes for attention itself; None where a block has no such output."""

    output: Tensor  # [B, H, M, E]
    weights: Tensor  # [B, H, M, N] after the softmax; rows sum to 1, or are all zero if no key may be attended to
    scores: Tensor  # [B, H, M, N] before the softmax, masks applied
    present_key: Tensor | None = None  # [B, K, N, D] past and new keys, joined
    present_value: Tensor | None = None  # [B, K, N, E]
    lse: Tensor | None = None  # [B, H, M] log of the sum of exp(scores) over the keys; -inf without keys
    query: Tensor | None = None  # [L, B, H, M, D] of a stack, after their learned projections
    key: Tensor | None = None  # [L, B, K, N, D]
    head_query: Tensor | None = None  # [B, H, M, D] after its learned projection
    head_output: Tensor | None = None  # [B, H, M, E] before the heads are joined
    head_share: Tensor | None = None  # [B, H, M, C] its sum over heads is the output without the bias
    weights_by_norm: Tensor | None = None  # [B, H, M, N]
    cross_weights: Tensor | None = None  # [L, B, H, M, N] over the memory of a stack that has one
    hidden_states: Tensor | None = None  # [L + 1, B, N, C] of a stack: each layer's input, and the output


# For a graph of ``output`` alone, export replaces the formula by a kernel (export/kernels/fast_path.py). Its arguments
# are the query before scaling, key and value joined with the past, and the options by name, with "past", its length.
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
    attn_bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    query_document_ids: Tensor | None = None,
    document_ids: Tensor | None = None,
    rope_theta: Tensor | None = None,
    rope_interleaved: Tensor | bool = False,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
) -> AttentionOutputs:
    """Attend from ``query`` [B, H, M, D] over ``key`` [B, K, N, D] and ``value`` [B, K, N, E].

    An option that is a number is a constant of an exported graph, which has no nodes for an option that is off; an
    option that is a tensor is an input. In tensors, a ``scale`` of NaN, and window sizes and a ``nonpad_kv_seqlen`` of
    -1 mean "not given".

    Args:
        attn_mask: true = may attend; or float, added to the scores. Broadcasts to [B, H, M, N].
        is_causal: query i attends to keys j <= i + offset; offset is the length of the past, or nonpad_kv_seqlen - M.
        left_window_size: query i attends to keys j >= i + offset - left_window_size.
        right_window_size: query i attends to keys j <= i + offset + right_window_size.
        scale: multiplies the scores; 1/sqrt(D) when not given.
        softcap: scores become softcap * tanh(scores / softcap) before the mask; 0 = off.
        nonpad_kv_seqlen: [B], the number of leading keys of each row that are real; others are masked.
        past_key, past_value: [B, K, P, D] and [B, K, P, E], joined before key and value.
        attn_bias: added to the scores before the softcap. Broadcasts to [B, H, M, N].
        alibi_slopes: [H]; slope * |i + offset - j| is subtracted from the scores, after the softcap.
        sinks: [H], scores that have no key and join the softmax's denominator.
        query_document_ids, document_ids: [B, M] and [B, N]; a query attends to keys of its own document.
        rope_theta: query and key are rotated by ``models.positions.rotated``; 0 = off.
        query_positions, key_positions: [B, M] and [B, N - P] for the rotation; -1 = the index plus the offset.

    Raises:
        RuntimeError: torch's, if shapes do not agree.
    """
    past = 0 if past_key is None else past_key.shape[2]
    if rope_theta is not None:
        offset = key_offset(query.shape[2], past, nonpad_kv_seqlen)
        offset = offset[:, :, 0, 0] if isinstance(offset, Tensor) else offset
        query = rotated(query, query_positions, offset, rope_theta, rope_interleaved)
        key = rotated(key, key_positions, past, rope_theta, rope_interleaved)
    key, value = _join(past_key, key), _join(past_value, value)
    B, H, M, D = query.shape
    K, N = key.shape[1], key.shape[2]

    if (kernel := KERNEL.get()) is not None:
        options = {
            "attn_mask": attn_mask,
            "is_causal": is_causal,
            "scale": scale,
            "softcap": softcap,
            "nonpad_kv_seqlen": nonpad_kv_seqlen,
            "left_window_size": left_window_size,
            "right_window_size": right_window_size,
            "past": past,
        }
        empty = query.new_empty(0)
        return AttentionOutputs(kernel(query, key, value, options), empty, empty, key, value)

    query = nan_if_overflowing(scaled(query, scale), key)
    # Heads of one group are adjacent, so a reshape groups the queries: H/K * M rows for each key head.
    q_BKGD = query.reshape(B, K, -1, D)
    scores_BHMN = (q_BKGD @ key.transpose(-1, -2)).reshape(B, H, M, N)
    if attn_bias is not None:
        scores_BHMN = scores_BHMN + attn_bias
    if isinstance(softcap, Tensor) or softcap > 0:
        capped = softcap * torch.tanh(scores_BHMN / softcap)
        scores_BHMN = torch.where(torch.as_tensor(softcap) > 0, capped, scores_BHMN)
    if alibi_slopes is not None:
        bias = linear_bias(alibi_slopes, M, N, key_offset(M, past, nonpad_kv_seqlen))
        scores_BHMN = scores_BHMN + cast_to(bias, scores_BHMN.dtype)

    attended = masked_softmax(
        scores_BHMN,
        value,
        past=past,
        attn_mask=attn_mask,
        is_causal=is_causal,
        left_window_size=left_window_size,
        right_window_size=right_window_size,
        nonpad_kv_seqlen=nonpad_kv_seqlen,
        sinks=sinks,
        query_document_ids=query_document_ids,
        document_ids=document_ids,
    )
    return attended._replace(present_key=key, present_value=value)


def masked_softmax(
    scores: Tensor,
    value: Tensor,
    *,
    past: int = 0,
    attn_mask: Tensor | None = None,
    is_causal: Tensor | bool = False,
    left_window_size: Tensor | int = -1,
    right_window_size: Tensor | int = -1,
    nonpad_kv_seqlen: Tensor | None = None,
    sinks: Tensor | None = None,
    query_document_ids: Tensor | None = None,
    document_ids: Tensor | None = None,
) -> AttentionOutputs:
    """Mask ``scores`` [B, H, M, N], take their softmax, and average ``value`` [B, K, N, E] with these weights.

    The options are those of ``attention``; the first ``past`` of the N keys are those of the past. A query that may
    attend to no key has weights and an output of zero.
    """
    B, H, M, N = scores.shape
    K, E = value.shape[1], value.shape[3]
    documents = None
    if query_document_ids is not None and document_ids is not None:
        documents = same_document(query_document_ids, document_ids)
    mask = joined_mask(
        M,
        N,
        past,
        attn_mask=attn_mask,
        is_causal=is_causal,
        left_window_size=left_window_size,
        right_window_size=right_window_size,
        nonpad_kv_seqlen=nonpad_kv_seqlen,
        documents=documents,
    )
    if mask is not None:
        scores = scores + cast_to(mask, scores.dtype)
    weights = torch.softmax(scores, -1)
    lse, lse_of_none = _lse(scores, weights), torch.tensor(-torch.inf, dtype=torch.float64)
    if sinks is not None:
        sink = lse_of_none = sinks.double()[:, None, None]
        joined = torch.maximum(lse, sink) + (1 + (-(lse - sink).abs()).exp()).log()
        weights = weights * (lse - joined).exp().to(weights.dtype)
        lse = joined
    if mask is not None:
        # The mask is tested, not the scores, so that an overflow stays visible: in float32, since CUDA cannot compare
        # bfloat16, and by zeros and ones, since CUDA's maximum of a row of -inf is the lowest float.
        all_masked = (upcast(mask) == -torch.inf).float().amin(-1, keepdim=True) > 0
        weights = torch.where(all_masked, 0.0, weights)
        lse = torch.where(all_masked, lse_of_none, lse)
    output = (weights.reshape(B, K, -1, N) @ value).reshape(B, H, M, E)
    return AttentionOutputs(output, weights, scores, lse=cast_to(lse.squeeze(-1), scores.dtype))


def _lse(scores: Tensor, weights: Tensor) -> Tensor:
    """The log of the sum of exp(scores), [B, H, M, 1], from the largest score of each row and its weight.

    That weight is exp(score - lse), so no second exp of every score is needed. The log is in float64: in float32 it may
    depend on a number's place in a vector register, and then requests cannot share a run (model/calibration.py).
    """
    return upcast(scores).amax(-1, keepdim=True).double() - upcast(weights).amax(-1, keepdim=True).double().log()


def real(nonpad_B111: Tensor, j: Tensor) -> Tensor:
    """Whether the keys ``j``, [N] or [N, 1], are real: the first ``nonpad_B111`` of each batch row; all if it is -1."""
    return (j < nonpad_B111) | (nonpad_B111 < 0)


def nan_if_overflowing(query: Tensor, key: Tensor, x: Tensor | None = None) -> Tensor:
    """``query`` [batch, ..., D], with NaN in each batch row where an inner product with ``key`` could overflow.

    A score that overflows to -inf would look like a masked key: a wrong result that looks right. D times the largest
    number of the queries times the largest of the keys is an upper bound on every sum. With ``x``, the result is ``x``
    with these NaN, and with NaN in each batch row where a query or key has one.
    """
    marked = query if x is None else x
    if query.dtype == torch.float16:  # summed in float32, where no sum of such products overflows
        return marked
    axes = tuple(range(1, query.ndim))
    # The rows' maxima are computed first, because CUDA computes each maximum on few of its processors.
    rows_query, rows_key = (upcast(each).abs().amax(-1, keepdim=True) for each in (query, key))
    largest = rows_query.amax(axes, keepdim=True) * rows_key.amax(axes, keepdim=True)
    bound = query.shape[-1] * largest
    if x is not None:  # ONNX Runtime's maximum skips some NaN, its sum does not
        bound = bound + upcast(query).sum(axes, keepdim=True) + upcast(key).sum(axes, keepdim=True)
    return marked + cast_to(0 * bound, marked.dtype)  # 0 times infinity or NaN is NaN


def _join(past: Tensor | None, new: Tensor) -> Tensor:
    """``past`` [B, K, P, D], or broadcastable to it, before ``new`` [B, K, N, D]."""
    if past is None:
        return new
    B, K, _, D = new.shape
    return torch.cat([past.expand(B, K, -1, D), new], 2)


def key_offset(M: int, past: int, nonpad_kv_seqlen: Tensor | None) -> Tensor | int:
    """The key that query 0 is aligned with: ``past``, or [B, 1, 1, 1] if lengths are given."""
    if nonpad_kv_seqlen is None:
        return past
    nonpad_B111 = nonpad_kv_seqlen[:, None, None, None]
    return torch.where(nonpad_B111 < 0, past, nonpad_B111 - M)


def scaled(query: Tensor, scale: Tensor | float | None) -> Tensor:
    """``query`` [..., D] times ``scale``; a scale of None or NaN means 1/sqrt(D)."""
    d_k = query.shape[-1]
    if isinstance(scale, Tensor):  # float32, so it may be out of the range of the query's type
        return cast_to(upcast(query) * torch.where(torch.isnan(scale), d_k**-0.5, scale), query.dtype)
    return query * (d_k**-0.5 if scale is None else scale)


def times(x: Tensor, scale: Tensor | float) -> Tensor:
    """``x`` times ``scale``, with NaN where a product with a tensor overflows: -inf would look like a masked key."""
    if not isinstance(scale, Tensor):
        return x if scale == 1 else x * scale
    product = upcast(x) * scale
    return cast_to(product + 0 * product, x.dtype)


def joined_mask(
    M: int,
    N: int,
    past: int = 0,
    *,
    attn_mask: Tensor | None = None,
    is_causal: Tensor | bool = False,
    left_window_size: Tensor | int = -1,
    right_window_size: Tensor | int = -1,
    nonpad_kv_seqlen: Tensor | None = None,
    documents: Tensor | None = None,
) -> Tensor | None:
    """All masks as one float tensor to add to the scores, broadcastable to [B, H, M, N]; None if there are none."""
    i = torch.arange(M)[:, None]
    j = torch.arange(N)
    offset = key_offset(M, past, nonpad_kv_seqlen)
    rules = [] if documents is None else [documents]  # boolean tensors: true = may attend
    if nonpad_kv_seqlen is not None:
        rules.append(real(nonpad_kv_seqlen[:, None, None, None], j))
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
