"""The parts of a memory's keys that nodes have, and the outputs over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from service.memories.sums import FLOAT32_MIN, Sums
from service.model.graph import Arrays


@dataclass(frozen=True, slots=True)
class Part:
    """Keys that follow one another: ``lengths[i]`` of row i of the batch, from the place ``starts[i]`` on."""

    starts: Sequence[int]
    lengths: Sequence[int]

    def local(self, keys: np.ndarray) -> np.ndarray:
        """The places ``keys`` [batch, m], counted from the part's first key and limited to the part."""
        starts, lengths = (np.asarray(of_rows)[:, None] for of_rows in (self.starts, self.lengths))
        places: np.ndarray = np.clip(keys - starts, 0, lengths)
        return places


def part_outputs(outputs: Sequence[str]) -> list[str]:
    """The outputs that a run over a part must have, so that ``merge_parts`` can return ``outputs``."""
    return [
        "top",
        "total",
        *(["weighted"] if "output" in outputs else []),
        *(name for name in ("weights", "scores") if name in outputs),
    ]


def merge_parts(parts: Sequence[tuple[Part, Arrays]], outputs: Sequence[str], n: int) -> dict[str, np.ndarray]:
    """The ``outputs`` over all ``n`` keys, in float32, from each part's ``part_outputs``.

    Shapes are those of ``StreamingSession``: output [batch, heads, m, d_v], weights and scores [batch, heads, m, n],
    lse [batch, heads, m].
    """
    of_parts = [Sums(of["top"][..., None], of["total"][..., None], of.get("weighted")) for _, of in parts]
    sums = reduce(Sums.merge, of_parts)
    shape = (*sums.top.shape[:-1], n)
    merged: dict[str, np.ndarray] = {}
    if "output" in outputs:
        merged["output"] = sums.output.astype(np.float32)
    if "lse" in outputs:
        merged["lse"] = sums.lse[..., 0].astype(np.float32)
    if "scores" in outputs:
        merged["scores"] = np.full(shape, -np.inf, np.float32)
        for part, of in parts:
            _place(merged["scores"], of["scores"], part)
    if "weights" in outputs:
        merged["weights"] = np.zeros(shape, np.float32)
        lse = np.maximum(sums.lse, FLOAT32_MIN)
        for (part, of), own in zip(parts, of_parts, strict=True):
            share = np.exp(np.maximum(own.lse, FLOAT32_MIN) - lse).astype(np.float32)
            _place(merged["weights"], of["weights"] * share, part)
    return {name: merged[name] for name in outputs}


def _place(whole: np.ndarray, own: np.ndarray, part: Part) -> None:
    """Write a part's columns ``own`` [batch, heads, m, longest row] to their places in ``whole`` [..., n]."""
    for row, (start, length) in enumerate(zip(part.starts, part.lengths, strict=True)):
        whole[row, ..., start : start + length] = own[row, ..., :length]
