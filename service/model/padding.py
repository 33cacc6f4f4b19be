"""Run a batch of texts of different lengths in groups of similar lengths, without most of the padding.

Sentence-transformers sorts the texts of a call by length for the same reason.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from service.model.spec import Signature
from service.tensors.dims import symbol

MASK = "attention_mask"
AXES = ["batch", "n"]
MIN_TOKENS = 64  # of a group, padding too: runs of fewer take hardly less time
SHORTEST = 0.75  # of a group's texts, as a share of its longest
MAX_SHARE = 0.8  # of the tokens that one run would have: with more, one run is as fast

Arrays = Mapping[str, np.ndarray]


def length_groups(signature: Signature, inputs: Arrays, outputs: Sequence[str]) -> list[np.ndarray] | None:
    """The rows of each group, the longest texts first; None where one run of all rows [batch, n] is as good.

    It is where no text is padded at its end, and where an output has values for each token.
    """
    mask = inputs.get(MASK)
    if mask is None or mask.ndim != 2 or len(mask) < 2 or not _is_by_row(signature, inputs, outputs):
        return None
    lengths = mask.sum(1)
    if ((np.arange(mask.shape[1]) < lengths[:, None]) != mask).any():
        return None
    groups = _grouped(lengths)
    count = sum(len(rows) * int(lengths[rows[0]]) for rows in groups)
    return groups if len(groups) > 1 and count <= MAX_SHARE * mask.size else None


def run_groups(
    execute: Callable[[Arrays, Sequence[str]], dict[str, np.ndarray]],
    groups: Sequence[np.ndarray],
    inputs: Arrays,
    outputs: Sequence[str],
) -> dict[str, np.ndarray]:
    """The ``outputs`` [batch, ...] of all rows, from a run of ``execute`` for each of the ``groups``."""
    batch, width = inputs[MASK].shape
    found: dict[str, np.ndarray] = {}
    for rows in groups:
        length = max(1, int(inputs[MASK][rows[0]].sum()))
        cut = {name: array[rows, :length] if array.shape == (batch, width) else array for name, array in inputs.items()}
        for name, part in execute(cut, outputs).items():
            if name not in found:
                found[name] = np.empty((batch, *part.shape[1:]), part.dtype)
            found[name][rows] = part
    return found


def _is_by_row(signature: Signature, inputs: Arrays, outputs: Sequence[str]) -> bool:
    """Whether a row's outputs depend on its own tokens alone, with no value for each of them."""
    if signature.spec is None:
        return False
    shapes = {name: [symbol(dim) for dim in signature.inputs[name].shape] for name in inputs}
    own = all(shape == AXES or not {*AXES} & {*shape} for shape in shapes.values())
    full = all(inputs[name].shape == inputs[MASK].shape for name, shape in shapes.items() if shape == AXES)
    answers = [[symbol(dim) for dim in signature.outputs[name].shape] for name in outputs]
    return own and full and all(shape[:1] == ["batch"] and "n" not in shape for shape in answers)


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
