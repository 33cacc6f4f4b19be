"""Run a batch of texts of different lengths in groups of similar lengths, without most of the padding.

Sentence-transformers sorts the texts of a call by length for the same reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from service.model.graph import Arrays
from service.model.spec import Signature
from service.tensors.dims import symbol

MASK = "attention_mask"
AXES = ["batch", "n"]
MIN_TOKENS = 64  # of a group, padding too: runs of fewer take hardly less time
SHORTEST = 0.75  # of a group's texts, as a share of its longest
MAX_SHARE = 0.8  # of the tokens that one run would have: with more, one run is as fast


@dataclass(frozen=True)
class LengthGroups:
    """The rows of a batch in groups, and the length of each group's longest row."""

    groups: list[tuple[np.ndarray, int]]
    padded: list[str]  # the inputs [batch, n]

    def run(
        self,
        execute: Callable[[Arrays, Sequence[str]], dict[str, np.ndarray]],
        inputs: Arrays,
        outputs: Sequence[str],
    ) -> dict[str, np.ndarray]:
        """The ``outputs`` [batch, ...] of all rows, from a run of ``execute`` for each group."""
        joined: dict[str, np.ndarray] = {}
        for rows, length in self.groups:
            cut = {**inputs, **{name: inputs[name][rows, :length] for name in self.padded}}
            for name, part in execute(cut, outputs).items():
                if name not in joined:
                    joined[name] = np.empty((len(inputs[MASK]), *part.shape[1:]), part.dtype)
                joined[name][rows] = part
        return joined


def length_groups(signature: Signature, inputs: Arrays, outputs: Sequence[str]) -> LengthGroups | None:
    """Groups of similar lengths, the longest texts first; None where one run of all rows [batch, n] is as good.

    It is where no text is padded at its end, where one has no token, and where an output has values for each token.
    """
    mask = inputs.get(MASK)
    if mask is None or mask.ndim != 2 or len(mask) < 2 or signature.spec is None:
        return None
    shapes = {name: [symbol(dim) for dim in signature.inputs[name].shape] for name in inputs}
    padded = [name for name, shape in shapes.items() if shape == AXES]
    others = {dim for name, shape in shapes.items() if name not in padded for dim in shape}
    answers = [[symbol(dim) for dim in signature.outputs[name].shape] for name in outputs]
    by_row = all(shape[:1] == ["batch"] and "n" not in shape for shape in answers)
    if not by_row or not all(map(str.isdecimal, others)) or any(inputs[name].shape != mask.shape for name in padded):
        return None
    lengths = mask.sum(1)
    if lengths.min() < 1 or ((np.arange(mask.shape[1]) < lengths[:, None]) != mask).any():
        return None
    groups = [(rows, int(lengths[rows[0]])) for rows in _grouped(lengths)]
    count = sum(len(rows) * length for rows, length in groups)
    return LengthGroups(groups, padded) if len(groups) > 1 and count <= MAX_SHARE * mask.size else None


def _grouped(lengths: np.ndarray) -> list[np.ndarray]:
    """The rows in groups, sorted by length, the longest first."""
    order = np.argsort(-lengths, kind="stable")
    groups: list[np.ndarray] = []
    start = 0
    for end in range(1, len(order) + 1):
        longest = int(lengths[order[start]])
        is_full = (end - start) * longest >= MIN_TOKENS
        if end == len(order) or (is_full and lengths[order[end]] < SHORTEST * longest):
            groups.append(order[start:end])
            start = end
    return groups
