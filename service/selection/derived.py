"""Outputs that are computed from the weights: of queries, of keys, of heads, and attention rollout."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.base.errors import Invalid
from service.model.spec import Signature
from service.selection.indices import Pick
from service.selection.reductions import as_float32, parts, reduce
from service.tensors.dims import Dim, symbol

SOURCE = "weights"
OWN = 0  # in the numbering of the axes of weights from the end: behind the last


@dataclass(frozen=True, slots=True)
class DerivedOutput:
    """``axes`` are those of the weights that it has: layers -5, batch -4, heads -3, queries -2, keys -1.

    OWN is an axis that the weights do not have, of the length ``own_size``; it comes last.
    """

    axes: tuple[int, ...]
    description: str
    own_size: int = 0


DERIVED = {
    "entropy": DerivedOutput(
        (-5, -4, -3, -2),
        "The entropy of each query's weights (normalised), in nats: 0 = one key, log n = uniform.",
    ),
    "received": DerivedOutput(
        (-5, -4, -3, -1),
        "The attention each key receives: the mean of its weights over the queries that have any.",
    ),
    "rollout": DerivedOutput(
        (-4, -2, -1),
        "Attention rollout (Abnar and Zuidema, 2020, https://arxiv.org/abs/2005.00928): in each layer the mean "
        "over heads, plus the identity, each row divided by its sum; the product over layers. Rows sum to 1.",
    ),
    "head_statistics": DerivedOutput(
        (-5, -4, -3, OWN),
        "For each self-attention head: entropy in nats, distance between query and key, share of the first key, "
        "of the query itself, and of the key before it; each the mean over the queries that have any weight.",
        own_size=5,
    ),
}


def derived_outputs(signature: Signature) -> dict[str, DerivedOutput]:
    """The derived outputs that a block offers; none for a model that is no block."""
    weights = signature.outputs.get(SOURCE) if signature.spec else None
    if weights is None or len(weights.shape) < 4:
        return {}
    offered = set(DERIVED) - set(signature.outputs)
    if len(weights.shape) < 5:
        offered.discard("rollout")
    queries, keys = map(symbol, weights.shape[-2:])
    if keys not in (queries, f"past + {queries}"):
        offered.discard("head_statistics")
    return {name: output for name, output in DERIVED.items() if name in offered}


def derived_shape(signature: Signature, output: DerivedOutput) -> list[Dim]:
    """The symbolic shape of a derived output."""
    declared = signature.outputs[SOURCE].shape
    return [output.own_size if axis == OWN else declared[axis] for axis in output.axes if -axis <= len(declared)]


def entropy(weights: np.ndarray, name: str = "entropy") -> np.ndarray:
    """-sum p log p of each row of ``weights`` [..., m, n], where p = w / sum w and 0 log 0 = 0; float32 [..., m].

    A row of zeros has 0. Logarithms are float32 and sums float64. ``name`` is the output that it is computed for.

    Raises:
        Invalid: a weight is negative.
    """
    result = np.empty(weights.shape[:-1], np.float32)
    for index in parts(weights, 1):
        part = as_float32(weights[index])
        if (low := part.min()) < 0:
            raise Invalid(f"{name} requires weights of at least 0, got {low:.3g}", "outputs")
        terms = np.zeros(part.shape, np.float32)
        np.log(part, out=terms, where=part > 0)
        terms *= part
        total = np.asarray(part.sum(-1, dtype=np.float64))
        total = np.where(total == 0, 1, total)
        rows = np.log(total) - terms.sum(-1, dtype=np.float64) / total
        result[index] = np.clip(rows, 0, np.log(weights.shape[-1]))
    return result


def received(weights: np.ndarray) -> np.ndarray:
    """The mean of each column of ``weights`` [..., m, n] over the rows that are not all zero; float32 [..., n].

    It is 0 where all rows are zero. Sums are float64.
    """
    result = np.empty((*weights.shape[:-2], weights.shape[-1]), np.float32)
    for index in parts(weights, 2):
        part = as_float32(weights[index])
        rows = np.count_nonzero(part.any(axis=-1), axis=-1)
        result[index] = part.sum(-2, dtype=np.float64) / np.maximum(rows, 1)[..., None]
    return result


def rollout(weights: np.ndarray, by: Literal["mean", "max"], queries: Pick = slice(None)) -> np.ndarray:
    """Attention rollout of ``weights`` [layers, batch, heads, n, n], first layer first; float32 [batch, queries, n].

    A layer is 0.5 A + 0.5 I with rows divided by their sums, A being its heads joined by their mean or maximum. The
    product begins at the last layer, with the rows of the selected ``queries`` alone.
    """
    result: np.ndarray | None = None
    diagonal = np.arange(weights.shape[-1])
    for layer in weights[::-1]:
        mixed = reduce(layer, 1, by).astype(np.float32, copy=False)
        mixed *= 0.5
        mixed[:, diagonal, diagonal] += 0.5
        mixed /= mixed.sum(-1, keepdims=True)
        result = mixed[:, queries] if result is None else result @ mixed
    assert result is not None, "a stack has a layer"
    return result


def head_statistics(weights: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Statistics of each head of ``weights`` [..., m, n], whose queries are at these ``places`` [m] among the n keys.

    With p the weights of a query divided by their sum, and c its place: -sum p log p in nats, sum p_j |c - j|, p_0,
    p_c, and p_(c-1), which a query at place 0 does not have. Each is the mean over the queries that have any weight, 0
    without one; float32 [..., 5]. Sums are float64.

    Raises:
        Invalid: a weight is negative.
    """
    rows = weights.shape[:-1]
    has_weight, statistics = np.empty(rows, bool), np.empty((5, *rows))
    statistics[0] = entropy(weights, "head_statistics")
    keys = np.arange(weights.shape[-1], dtype=np.float32)
    all_places = np.broadcast_to(places, rows)
    for index in parts(weights, 1):
        part, place = as_float32(weights[index]), all_places[index][..., None]
        total = np.asarray(part.sum(-1, dtype=np.float64))
        has_weight[index] = total > 0
        distances = np.abs(keys - place.astype(np.float32))
        distances *= part
        shares = (
            distances.sum(-1, dtype=np.float64),
            part[..., 0],
            *(np.take_along_axis(part, np.maximum(place - back, 0), -1)[..., 0] for back in (0, 1)),
        )
        for statistic, share in zip(statistics[1:], shares, strict=True):
            statistic[index] = share / np.where(total > 0, total, 1)
    result = np.empty((*rows[:-1], 5), np.float32)
    for number, statistic in enumerate(statistics):
        counted = has_weight & (places > 0) if number == 4 else has_weight
        result[..., number] = statistic.sum(-1, where=counted) / np.maximum(counted.sum(-1), 1)
    return result
