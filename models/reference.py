r"""The reference: every block in numpy in float64, in the form of its formula. For the tests and export's verification.

The same functions in float32 are the plain version whose error defines every tolerance (``export.verification``). The
sources of the formulas are in the modules of the blocks.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def attention(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    left_window_size=-1,
    right_window_size=-1,
    scale=None,
    softcap=0.0,
    nonpad_kv_seqlen=None,
    past_key=None,
    past_value=None,
    attn_bias=0.0,
    alibi_slopes=0.0,
    rope_theta=0.0,
    rope_interleaved=False,
    query_positions=None,
    key_positions=None,
    dtype=np.float64,
    **others,
) -> dict[str, np.ndarray]:
    """softmax(scale Q K^T + mask) V, with every option of ``models.scaled_dot_product``.

    ``others`` are for ``masked_softmax``.

    Raises:
        ValueError: ``nonpad_kv_seqlen`` with a past (their offsets contradict), or shapes that do not agree.
    """
    if nonpad_kv_seqlen is not None and past_key is not None:
        raise ValueError("nonpad_kv_seqlen and past_key exclude each other")
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    batch, heads, m, d_k = query.shape
    n = key.shape[2]
    past = 0 if past_key is None else past_key.shape[2]
    offset = np.full((batch, 1), past) if nonpad_kv_seqlen is None else np.reshape(nonpad_kv_seqlen, (batch, 1)) - m
    if rope_theta:
        query_positions = np.arange(m) + offset if query_positions is None else query_positions
        key_positions = np.arange(n)[None] + past if key_positions is None else key_positions
        query = rotated(query, query_positions, rope_theta, rope_interleaved)
        key = rotated(key, key_positions, rope_theta, rope_interleaved)
    if past_key is not None:
        key = np.concatenate([np.asarray(past_key, dtype), key], axis=2)
        value = np.concatenate([np.asarray(past_value, dtype), value], axis=2)
    present_key, present_value = key, value
    kv_heads = key.shape[1]
    key = np.repeat(key, heads // kv_heads, axis=1)  # adjacent query heads share a key head
    value = np.repeat(value, heads // kv_heads, axis=1)

    scale = 1 / np.sqrt(d_k) if scale is None else scale
    scores = dtype(scale) * product(query, np.swapaxes(key, -1, -2))
    scores = scores + np.asarray(attn_bias, dtype)
    if softcap:
        scores = dtype(softcap) * np.tanh(scores / dtype(softcap))
    distance = np.abs(np.arange(m)[:, None] + offset[..., None, None] - np.arange(past + n))
    scores = scores - np.reshape(np.asarray(alibi_slopes, dtype), (-1, 1, 1)) * distance.astype(dtype)

    outputs = masked_softmax(
        scores,
        value,
        past=past,
        attn_mask=attn_mask,
        is_causal=is_causal,
        left_window_size=left_window_size,
        right_window_size=right_window_size,
        nonpad_kv_seqlen=nonpad_kv_seqlen,
        **others,
    )
    return outputs | {"present_key": present_key, "present_value": present_value}


def rotated(x, positions, theta, interleaved):
    """Each pair of features of ``x`` [batch, heads, m, d_k] as a point, rotated around the origin."""
    half = x.shape[-1] // 2
    turned = x.copy()
    for k in range(half):
        a, b = (2 * k, 2 * k + 1) if interleaved else (k, k + half)
        angle = np.asarray(positions, x.dtype)[:, None] * x.dtype.type(theta) ** x.dtype.type(-k / half)
        turned[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
        turned[..., b] = x[..., a] * np.sin(angle) + x[..., b] * np.cos(angle)
    return turned


def masked_softmax(scores, value, past=0, sinks=None, **masking) -> dict[str, np.ndarray]:
    """Masks, softmax and weighted average of ``scores`` [batch, heads, m, n] and ``value`` [batch, heads, n, d_v]."""
    batch, heads, m, n = scores.shape
    scores = masked(scores, past, **masking)
    joined = scores  # with a column for the sink
    if sinks is not None:
        column = np.broadcast_to(np.reshape(np.asarray(sinks, scores.dtype), (-1, 1, 1)), (batch, heads, m, 1))
        joined = np.concatenate([scores, column], axis=-1)
    weights = softmax(joined)[..., :n]
    return {"output": product(weights, value), "weights": weights, "scores": scores, "lse": lse(joined)}


def masked(
    scores,
    past=0,
    attn_mask=None,
    is_causal=False,
    left_window_size=-1,
    right_window_size=-1,
    nonpad_kv_seqlen=None,
    query_document_ids=None,
    document_ids=None,
):
    """``scores`` [batch, heads, m, n] plus the mask, and -inf where attending is forbidden."""
    batch, heads, m, n = scores.shape
    dtype = scores.dtype.type
    allowed = np.ones((batch, heads, m, n), bool)
    i, j = np.arange(m)[:, None], np.arange(n)[None, :]
    offset = np.full((batch, 1, 1, 1), past)
    if nonpad_kv_seqlen is not None:
        real = np.reshape(nonpad_kv_seqlen, (batch, 1, 1, 1))
        offset = real - m
        allowed &= j < real
    if is_causal:
        allowed &= j <= i + offset
    if left_window_size >= 0:
        allowed &= j >= i + offset - left_window_size
    if right_window_size >= 0:
        allowed &= j <= i + offset + right_window_size
    if document_ids is not None:
        allowed &= query_document_ids[:, None, :, None] == document_ids[:, None, None, :]
    if attn_mask is not None:
        if np.asarray(attn_mask).dtype == bool:
            allowed &= attn_mask
        else:
            scores = scores + np.asarray(attn_mask, dtype)
    return np.where(allowed, scores, dtype(-np.inf))


def product(a, b):
    """The matrix product a b, with each sum added up in order: einsum uses plain loops and no BLAS."""
    if b.shape[-1] == 1:  # einsum would split these sums
        return np.cumsum(a * b.swapaxes(-1, -2), axis=-1)[..., -1:]
    return np.einsum("...ik,...kj->...ij", a, np.ascontiguousarray(b))


def softmax(scores):
    """exp(s) / sum(exp(s)) over the last axis; zeros for a row in which all scores are -inf."""
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def lse(scores):
    """log(sum(exp(s))) over the last axis; -inf for a row in which all scores are -inf."""
    top = scores.max(axis=-1)
    shift = np.where(np.isneginf(top), 0, top)
    with np.errstate(divide="ignore"):
        return shift + np.log(np.exp(scores - shift[..., None]).sum(axis=-1))


def multi_head(
    state: Mapping[str, Any],
    num_heads,
    num_kv_heads,
    query=None,
    key=None,
    value=None,
    x=None,
    memory=None,
    head_mask=None,
    dtype=np.float64,
    **options,
) -> dict[str, np.ndarray]:
    """Attention of ``num_heads`` heads between learned projections; ``state`` has ``q_proj.weight`` and so on.

    ``query`` [batch, m, d_model], ``key`` [batch, n, kdim], ``value`` [batch, n, vdim]; or ``x`` for all three; or
    ``x`` for the query and ``memory`` for the others.
    """
    if x is not None:
        query, key, value = x, x, x
    if memory is not None:
        key, value = memory, memory
    query = split(linear(state, "q_proj", query, dtype), num_heads)
    heads = attention(
        query,
        split(linear(state, "k_proj", key, dtype), num_kv_heads),
        split(linear(state, "v_proj", value, dtype), num_kv_heads),
        dtype=dtype,
        **options,
    )
    value = np.repeat(heads["present_value"], num_heads // num_kv_heads, axis=1)
    if head_mask is not None:
        heads["weights"] = heads["weights"] * np.asarray(head_mask, dtype)[..., None, None]
        heads["output"] = product(heads["weights"], value)
    joined = join(heads["output"])
    outputs = heads | {"head_query": query, "head_output": heads["output"], "output": joined}
    if "out_proj.weight" not in state:
        return outputs
    by_head = np.split(np.asarray(state["out_proj.weight"], dtype).T, num_heads)  # the rows of W^O for each head
    return outputs | {
        "output": linear(state, "out_proj", joined, dtype),
        "head_share": product(heads["output"], np.stack(by_head)),
        "weights_by_norm": np.abs(heads["weights"]) * length(product(value, np.stack(by_head)))[..., None, :],
    }


def length(x):
    """The length of each vector of the last axis."""
    largest = np.abs(x).max(axis=-1, keepdims=True)
    x = x / np.where(largest == 0, 1, largest)  # in float32, squares would overflow or underflow
    return largest[..., 0] * np.sqrt((x * x).sum(axis=-1))


def linear(state: Mapping[str, Any], name, x, dtype):
    """x W + b, or x W without a bias; ``state`` has the transpose of W, as in torch."""
    x, weight = np.asarray(x, dtype), np.asarray(state[f"{name}.weight"], dtype)
    return product(x, weight.T) + np.asarray(state.get(f"{name}.bias", 0), dtype)


def split(x, heads):
    """[batch, length, heads * d] -> [batch, heads, length, d]"""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def join(x):
    """[batch, heads, length, d] -> [batch, length, heads * d]"""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def cosine(query, key, value, scale=1.0, dtype=np.float64, **options) -> dict[str, np.ndarray]:
    """softmax(s q.k / (|q| |k|)) V; a vector of zeros has the score 0."""
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))

    def unit(x):
        largest = np.abs(x).max(axis=-1, keepdims=True)
        x = x / np.where(largest == 0, 1, largest)  # in float32, squares would overflow or underflow
        length = np.sqrt((x * x).sum(axis=-1, keepdims=True))
        return x / np.where(length == 0, 1, length)

    scores = dtype(scale) * product(unit(query), unit(key).swapaxes(-1, -2))
    return masked_softmax(scores, value, **options)


def kernel(query, key, value, bandwidth=1.0, normalize=True, dtype=np.float64, **options) -> dict[str, np.ndarray]:
    """softmax(-|q - k|^2 / (2 bandwidth^2)) V, the kernel average of the values; or the sum, weighted by the kernel."""
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    distance = np.zeros((*query.shape[:-1], key.shape[-2]), dtype)
    for feature in range(query.shape[-1]):  # one after the other, to add them up in order
        distance += (query[..., :, None, feature] - key[..., None, :, feature]) ** 2
    outputs = masked_softmax(-distance / (2 * dtype(bandwidth) ** 2), value, **options)
    if not normalize:
        weights = np.exp(outputs["scores"])
        outputs |= {"weights": weights, "output": product(weights, value)}
    return outputs


def multiplicative(query, key, value, scale=1.0, dtype=np.float64, **masking) -> dict[str, np.ndarray]:
    """s (Q K^T) V, without a softmax; with a mask (s Q K^T + M) V, and zero where attending is forbidden."""
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    scores = masked(dtype(scale) * (query @ np.ascontiguousarray(key.swapaxes(-1, -2))), **masking)
    weights = np.where(np.isneginf(scores), dtype(0), scores)
    return {"output": weights @ value, "weights": weights}


def linear_attention(
    query, key, value, is_causal=False, nonpad_kv_seqlen=None, dtype=np.float64
) -> dict[str, np.ndarray]:
    """phi(q_i) S_i / phi(q_i).z_i, where phi = elu + 1.

    S_i and z_i are the sums of phi(k_j) v_j^T and of phi(k_j) over the keys j that query i may attend to.
    """
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))

    def phi(x, axis):
        # Weights are ratios: where exp could underflow in float64 for all features of a query, or for all keys, they
        # are multiplied by a common factor. Scores that this changes are below 1e-90, which is 0 in float32.
        top = x.max(axis=axis, keepdims=True)
        x = np.where(top < -300, x - top - 300, x)
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    q, k = phi(query, -1), phi(key, (2, 3))
    m, n = query.shape[-2], key.shape[-2]
    if nonpad_kv_seqlen is not None:
        k = np.where(np.arange(n)[:, None] < np.reshape(nonpad_kv_seqlen, (-1, 1, 1, 1)), k, dtype(0))
    scores = q @ np.ascontiguousarray(k.swapaxes(-1, -2))
    if is_causal:
        scores = np.where(np.arange(n) <= np.arange(m)[:, None], scores, dtype(0))
    total = scores.sum(axis=-1, keepdims=True)

    last = np.minimum(np.arange(m), n - 1) if is_causal else np.full(m, n - 1)  # the last key of each query
    sums = np.cumsum(k[..., :, None] * value[..., None, :], axis=2)[:, :, last]  # S, [batch, heads, m, d_k, d_v]
    numerator = (q[..., None] * sums).sum(axis=-2)
    denominator = (q * np.cumsum(k, axis=2)[:, :, last]).sum(axis=-1, keepdims=True)
    return {
        "output": numerator / np.where(denominator == 0, 1, denominator),
        "weights": scores / np.where(total == 0, 1, total),
        "scores": scores,
    }


def efficient(query, key, value, nonpad_kv_seqlen=None, dtype=np.float64) -> dict[str, np.ndarray]:
    """softmax(Q) (softmax(K)^T V), over the features of Q and over the positions of K."""
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    if nonpad_kv_seqlen is not None:
        real = np.arange(key.shape[2])[:, None] < np.reshape(nonpad_kv_seqlen, (-1, 1, 1, 1))
        key = np.where(real, key, dtype(-np.inf))
    over_positions = softmax(key.swapaxes(-1, -2))  # [batch, heads, d_k, n]
    weights = softmax(query) @ over_positions
    return {"output": weights @ value, "weights": weights}


def additive(state, query, key, value, scale=1.0, dtype=np.float64, **options) -> dict[str, np.ndarray]:
    """softmax(s v^T tanh(W_q q + W_k k)) V, one head; ``state`` has ``q_proj``, ``k_proj`` and ``v``."""
    added = linear(state, "q_proj", query, dtype)[:, :, None] + linear(state, "k_proj", key, dtype)[:, None]
    scores = dtype(scale) * linear(state, "v", np.tanh(added), dtype)[..., 0]
    outputs = masked_softmax(scores[:, None], np.asarray(value, dtype)[:, None], **options)
    return outputs | {"output": outputs["output"][:, 0]}


def luong_general(state, query, key, value, scale=1.0, dtype=np.float64, **options) -> dict[str, np.ndarray]:
    """softmax(s q W k^T) V, one head; ``state`` has ``q_proj``, the transpose of W."""
    key = np.asarray(key, dtype)
    scores = dtype(scale) * product(linear(state, "q_proj", query, dtype), key.swapaxes(-1, -2))
    outputs = masked_softmax(scores[:, None], np.asarray(value, dtype)[:, None], **options)
    return outputs | {"output": outputs["output"][:, 0]}
