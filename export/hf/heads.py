"""Apply head masks, and record the queries and keys of heads, in each call of attention.

A mask has a factor for each head of every layer, applied to its weights after the softmax.

transformers had the arguments ``head_mask``, ``decoder_head_mask`` and ``cross_attn_head_mask`` before version 5. Here
a registered attention function applies masks: it calls the model's eager function, and multiplies the weights and
outputs. Without a mask it only calls the eager function.

Recorded queries are multiplied by the scale, and keys that heads share are repeated for each head: the product of both
is a head's score before masks and biases.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

HEADS = "heed_heads"
Row = tuple[str, int]  # the name of a mask, and a layer
AttentionOutputs = tuple[Tensor, Tensor]  # output [batch, queries, heads, width], weights [batch, heads, queries, keys]

Change = Callable[[AttentionOutputs, Tensor, Tensor], AttentionOutputs]  # of the outputs, for the call's query and key

_CHANGE: ContextVar[Change | None] = ContextVar("_CHANGE", default=None)


@contextmanager
def changed(change: Change) -> Iterator[None]:
    """A context in which ``change`` replaces the outputs of each call of the attention ``HEADS``.

    ``change`` gets these outputs and the call's scaled query and its key, both [batch, heads, length, width].
    """
    token = _CHANGE.set(change)
    try:
        yield
    finally:
        _CHANGE.reset(token)


def heads_masked(
    masks: Mapping[str, Tensor], rows: Sequence[Row], recorded: MutableMapping[Row, tuple[Tensor, Tensor]]
) -> AbstractContextManager[None]:
    """A context in which a model with the attention ``HEADS`` multiplies the weights of each head by its mask.

    ``masks`` are [layers, heads]; ``rows`` has the row of each call of attention, in the order of the calls. The query
    and key of each call are added to ``recorded``.
    """
    remaining = iter(rows)

    def multiply(outputs: AttentionOutputs, query: Tensor, key: Tensor) -> AttentionOutputs:
        name, layer = row = next(remaining)
        recorded[row] = query, key
        if name not in masks:
            return outputs
        output, weights = outputs
        mask_H1 = masks[name][layer][:, None]
        return output * mask_H1, weights * mask_H1[:, None]

    return changed(multiply)


def attend(module: nn.Module, query: Tensor, key: Tensor, *tensors: Tensor | None, **options: Any) -> AttentionOutputs:
    """Call the eager function of the model that ``module`` belongs to; then apply the masks, if there are any."""
    eager = inspect.unwrap(type(module).forward).__globals__["eager_attention_forward"]
    outputs: AttentionOutputs = eager(module, query, key, *tensors, **options)
    change = _CHANGE.get()
    if change is None:
        return outputs
    scale = options.get("scaling")
    scaled = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    return change(outputs, scaled, key.repeat_interleave(query.shape[1] // key.shape[1], 1))
