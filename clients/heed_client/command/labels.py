"""Labels of heat maps whose queries are selected, or whose queries and keys are pooled to cells."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from heed_client.block import Block


def weights_size(block: Block, inputs: Mapping[str, Any]) -> tuple[int, int]:
    """How many queries and keys all weights have, from the lengths of the inputs, whose leading axes may be omitted.

    Raises:
        ValueError: no input has this dimension; the message begins with ``labels``.
    """
    sizes: dict[str, int] = {"past": 0}
    for name, spec in block.inputs.items():
        shape = np.shape(inputs[name]) if name in inputs else ()
        for dim, length in zip(reversed(spec.shape), reversed(shape), strict=False):
            sizes[str(dim)] = max(length, sizes.get(str(dim), 1))
    m, n = (_evaluate(str(dim), sizes) for dim in block.outputs["weights"].shape[-2:])
    return m, n


def select_labels(labels: Sequence[str], indices: Any) -> list[str]:
    """The labels at ``indices``, which the server has accepted: a number, a list, or text of indices and ranges."""
    if indices is None:
        return list(labels)
    selected: list[str] = []
    for part in indices.split(",") if isinstance(indices, str) else np.ravel(indices).tolist():
        bounds = str(part).split(":")
        try:
            if len(bounds) == 1:
                selected.append(labels[int(part)])
            else:
                selected += labels[slice(*(int(bound) if bound.strip() else None for bound in bounds))]
        except IndexError:
            raise ValueError(f"labels: {len(labels)} words, but query {part} is selected") from None
    return selected


def pool_labels(labels: Sequence[str], k: int) -> list[str]:
    """The labels of at most ``k`` cells of near equal size: of the first and the last place in each."""
    if len(labels) <= k:
        return list(labels)
    edges = [i * len(labels) // k for i in range(k + 1)]
    return [
        labels[start] if stop - start == 1 else f"{labels[start]}…{labels[stop - 1]}" for start, stop in pairwise(edges)
    ]


def _evaluate(dim: str, sizes: Mapping[str, int]) -> int:
    try:
        return sum(int(term) if term.isdecimal() else sizes[term] for term in dim.split(" + "))
    except KeyError as missing:
        raise ValueError(f"labels: no input says how long {missing.args[0]} is") from None
