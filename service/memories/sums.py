"""Softmax over keys in parts: the sums of each part, and which keys a query may attend to.

A part gives every query its largest score, the sum of exp(score - largest) and the values weighted by these. Parts are
merged by their largest scores, so that the result is that of one softmax over all keys (Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018, https://arxiv.org/abs/1805.02867).
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from service.model.graph import Arrays

FLOAT32_MIN = np.finfo(np.float32).min  # in place of -inf where that would be subtracted from -inf


@dataclass(slots=True)
class Sums:
    """The sums over some keys, for each query; in float64."""

    top: np.ndarray  # [..., 1] the largest score
    total: np.ndarray  # [..., 1] the sum of exp(score - top)
    weighted: np.ndarray | None  # [..., d_v] the sum of exp(score - top) value

    def merge(self, other: Self) -> Self:
        """The sums over the keys of both."""
        top = np.maximum(self.top, other.top)
        shift = np.maximum(top, FLOAT32_MIN)
        own, others = np.exp(self.top - shift), np.exp(other.top - shift)
        weighted = None
        if self.weighted is not None and other.weighted is not None:
            weighted = own * self.weighted + others * other.weighted
        return type(self)(top, own * self.total + others * other.total, weighted)

    @property
    def lse(self) -> np.ndarray:
        """The logarithm of the sum of exp(score), [..., 1]; -inf without keys."""
        with np.errstate(divide="ignore"):
            result: np.ndarray = self.top + np.log(self.total)
        return result

    @property
    def output(self) -> np.ndarray:
        """The values weighted by the softmax of the scores, [..., d_v]; 0 without keys."""
        assert self.weighted is not None, "an output needs values"
        result: np.ndarray = self.weighted / np.where(self.total == 0, 1, self.total)
        return result


def attended_keys(inputs: Arrays, batch: int, m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The first of n keys that each query may attend to, and the one after the last, [batch, m]."""
    if "first_key" in inputs:
        return inputs["first_key"], inputs["last_key"]
    lengths = np.broadcast_to(np.asarray(inputs.get("nonpad_kv_seqlen", -1), np.int64), batch)[:, None]
    position = np.arange(m) + np.where(lengths < 0, 0, lengths - m)
    left, right = (int(inputs.get(f"{side}_window_size", -1)) for side in ("left", "right"))
    first = np.zeros((batch, m), np.int64)
    last = np.where(lengths < 0, n, lengths) + first
    if bool(inputs.get("is_causal", False)):
        last = np.minimum(last, position + 1)
    if right >= 0:
        last = np.minimum(last, position + min(right, n + m) + 1)
    if left >= 0:
        first = np.maximum(first, position - min(left, n + m))
    return first, last
