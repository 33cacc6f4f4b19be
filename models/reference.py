r"""The oracle: attention in numpy, float64, written as the formula stands. For the tests and export's check.

The same lines in float32 are the plain version whose error sets every tolerance (``export.verification``).
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
    dtype=np.float64,
) -> dict[str, np.ndarray]:
    """softmax(scale Q K^T + mask) V, with every option of ``models.attention.attention``; shapes as there.

    Raises:
        ValueError: ``nonpad_kv_seqlen`` with a past (their offsets contradict), or numpy's, where shapes do not agree.
    """
    if nonpad_kv_seqlen is not None and past_key is not None:
        raise ValueError("nonpad_kv_seqlen and past_key exclude each other")
    query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
    past = 0
    if past_key is not None:
        past = past_key.shape[2]
        key = np.concatenate([np.asarray(past_key, dtype), key], axis=2)
        value = np.concatenate([np.asarray(past_value, dtype), value], axis=2)
    present_key, present_value = key, value
    batch, heads, m, d_k = query.shape
    kv_heads, n = key.shape[1:3]
    key = np.repeat(key, heads // kv_heads, axis=1)  # each key head serves a group of neighbouring query heads
    value = np.repeat(value, heads // kv_heads, axis=1)

    scale = 1 / np.sqrt(d_k) if scale is None else scale
    scores = dtype(scale) * (query @ np.ascontiguousarray(np.swapaxes(key, -1, -2)))
    if softcap:
        scores = dtype(softcap) * np.tanh(scores / dtype(softcap))

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
    if attn_mask is not None:
        if np.asarray(attn_mask).dtype == bool:
            allowed &= attn_mask
        else:
            scores = scores + np.asarray(attn_mask, dtype)
    scores = np.where(allowed, scores, dtype(-np.inf))

    weights = softmax(scores)
    return {
        "output": weights @ value,
        "weights": weights,
        "scores": scores,
        "present_key": present_key,
        "present_value": present_value,
    }


def softmax(scores):
    """exp(s) / sum(exp(s)) over the last axis; a row of -inf alone becomes zeros."""
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def multi_head(
    state: Mapping[str, Any], num_heads: int, query, key, value, dtype=np.float64, **options
) -> dict[str, np.ndarray]:
    """Attention of ``num_heads`` heads between learned projections; ``state`` holds ``q_proj.weight`` and so on.

    ``query`` [batch, m, d_model], ``key`` [batch, n, kdim], ``value`` [batch, n, vdim].
    """

    def linear(x, name):  # x W + b, with W [in, out] as the formula has it; torch keeps its transpose
        weight = np.ascontiguousarray(np.transpose(state[f"{name}.weight"]), dtype)
        return np.asarray(x, dtype) @ weight + np.asarray(state[f"{name}.bias"], dtype)

    def split(x):  # [batch, length, heads * d] -> [batch, heads, length, d]
        return x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)

    heads = attention(
        split(linear(query, "q_proj")),
        split(linear(key, "k_proj")),
        split(linear(value, "v_proj")),
        dtype=dtype,
        **options,
    )
    joined = heads["output"].swapaxes(1, 2).reshape(*np.shape(query)[:2], -1)
    return heads | {"output": linear(joined, "out_proj")}
