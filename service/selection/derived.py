"""Outputs that are computed from the weights: the entropy of queries, what keys receive, and attention rollout."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.errors import Invalid
from service.model.spec import Signature
from service.selection.indices import Pick
from service.selection.reductions import as_float32, parts, reduce
from service.tensors.dims import Dim

SOURCE = "weights"


@dataclass(frozen=True, slots=True)
class DerivedOutput:
    """``axes`` are those of the weights that it has: layers -5, batch -4, heads -3, queries -2, keys -1."""

    name: str
    axes: tuple[int, ...]
    description: str


DERIVED = {
    output.name: output
    for output in (
        DerivedOutput(
            "entropy",
            (-5, -4, -3, -2),
            "Of each query the entropy of its weights, divided by their sum, in nats: 0 = one key, log n = all alike.",
        ),
        DerivedOutput(
            "received",
            (-5, -4, -3, -1),
            "Of each key the attention that it receives: the mean of its weights over the queries that have any.",
        ),
        DerivedOutput(
            "rollout",
            (-4, -2, -1),
            "Attention rollout (Abnar and Zuidema, 2020, https://arxiv.org/abs/2005.00928): in each layer the mean "
            "over heads, plus the identity, each row divided by its sum; the product over layers. Rows sum to 1.",
        ),
    )
}


def derived_outputs(signature: Signature) -> dict[str, DerivedOutput]:
    """The derived outputs that a block offers; none for a model that is no block."""
    weights = signature.outputs.get(SOURCE) if signature.spec else None
    if weights is None or len(weights.shape) < 4:
        return {}
    return {
        name: output
        for name, output in DERIVED.items()
        if name not in signature.outputs and (name != "rollout" or len(weights.shape) == 5)
    }


def derived_shape(signature: Signature, output: DerivedOutput) -> list[Dim]:
    """The symbolic shape of a derived output."""
    declared = signature.outputs[SOURCE].shape
    return [declared[axis] for axis in output.axes if -axis <= len(declared)]


def entropy(weights: np.ndarray) -> np.ndarray:
    """-sum p log p of each row of ``weights`` [..., m, n], where p = w / sum w and 0 log 0 = 0; float32 [..., m].

    A row of zeros has 0. Logarithms are float32 and sums float64.

    Raises:
        Invalid: a weight is negative.
    """
    result = np.empty(weights.shape[:-1], np.float32)
    for index in parts(weights, 1):
        part = as_float32(weights[index])
        if (low := part.min()) < 0:
            raise Invalid(f"entropy needs weights from 0, got {low:.3g}", "outputs")
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
