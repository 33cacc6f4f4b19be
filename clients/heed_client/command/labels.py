"""Labels of heat maps: tokens of texts, of selected queries, and of the cells to which queries and keys are pooled."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from heed_client.answer import Answer
from heed_client.block import Block
from heed_client.command.matrix import Labels


def tokens_of(answer: Answer) -> list[list[str]]:
    """The tokens of each text of a call: those of the decoder, whose weights are drawn, if the model has one."""
    tokens: list[Any] = getattr(answer, "target_tokens", None) or getattr(answer, "tokens", None) or []
    return tokens if all(isinstance(token, list) for token in tokens) else [tokens]


def texts_of(answer: Answer, describe: Callable[[], Block], inputs: Mapping[str, Any], given: Labels) -> list[Labels]:
    """The labels of each text of a call with ``inputs``; those in ``given`` override tokens.

    Raises:
        ValueError: no input shows the number of queries; the message begins with ``labels``.
    """
    tokens = [] if given.queries else tokens_of(answer)
    texts = [Labels(of, given.keys) for of in tokens] or [given]
    k, queries = inputs.get("weights_pool"), inputs.get("queries")
    if queries is None and not k:
        if len(texts) == 1:
            return texts
        masks = getattr(answer, "decoder_attention_mask", None) or answer.attention_mask
        return [Labels(*of[:2], [not kept for kept in mask]) for of, mask in zip(texts, masks, strict=True)]
    ids = {name: getattr(answer, name) for name in ("input_ids", "decoder_input_ids") if hasattr(answer, name)}
    m, n = _weights_size(describe(), {**inputs, **ids})
    shown = []
    for rows, keys, _ in texts:
        columns = keys or (rows if m == n else ()) or [str(place) for place in range(n)]
        rows = _select(rows or [str(place) for place in range(m)], queries)
        shown.append(Labels(_pool(rows, k), _pool(columns, k)) if k else Labels(rows, columns))
    return shown


def batch_axis(block: Block, output: str, inputs: Mapping[str, Any]) -> int:
    """The axis of an output that has a row for each text."""
    axis = [*({**block.outputs, **block.derived})[output].shape].index("batch")
    return axis - bool(axis and inputs.get("reduce_layers"))


def axes_of(block: Block, output: str, inputs: Mapping[str, Any], count: int) -> list[str]:
    """Names of one place on each of the ``count`` leading axes of an output; an answer to one text has no batch."""
    shape = [str(dim) for dim in {**block.outputs, **block.derived}[output].shape[:-2]]
    if "batch" not in shape:
        return []
    row = shape.index("batch")
    axes = [*["layer"] * row, "row", *["head"] * (len(shape) - row - 1)]
    axes = [axis for axis in axes if not inputs.get(f"reduce_{axis}s")]
    if len(axes) > count:
        axes.remove("row")
    return axes if len(axes) == count else []


def _weights_size(block: Block, inputs: Mapping[str, Any]) -> tuple[int, int]:
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


def _select(labels: Sequence[str], indices: Any) -> list[str]:
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
            raise ValueError(
                f"labels: expected one for each query, got {len(labels)}, but query {part} is selected"
            ) from None
    return selected


def _pool(labels: Sequence[str], k: int) -> list[str]:
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
        raise ValueError(f"labels: no input determines the size of {missing.args[0]}") from None
