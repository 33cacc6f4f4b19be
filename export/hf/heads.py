"""Masks of heads: a factor for each head of every layer, applied to its weights after the softmax.

transformers had the arguments ``head_mask``, ``decoder_head_mask`` and ``cross_attn_head_mask`` before version 5. Here
they are an attention function under a name of its own: the model's eager function, whose weights and outputs are
multiplied. Without a mask it is the eager function.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

HEADS = "heed_heads"
Row = tuple[str, int]  # the name of a mask, and a layer
AttentionOutputs = tuple[Tensor, Tensor]  # output [batch, queries, heads, width], weights [batch, heads, queries, keys]

_CHANGE: ContextVar[Callable[[Tensor, Tensor], AttentionOutputs] | None] = ContextVar("_CHANGE", default=None)


@contextmanager
def changed(change: Callable[[Tensor, Tensor], AttentionOutputs]) -> Iterator[None]:
    """A context in which ``change`` replaces the outputs of each call of the attention ``HEADS``."""
    token = _CHANGE.set(change)
    try:
        yield
    finally:
        _CHANGE.reset(token)


def heads_masked(masks: Mapping[str, Tensor], rows: Sequence[Row]) -> AbstractContextManager[None]:
    """A context in which a model with the attention ``HEADS`` multiplies the weights of each head by its mask.

    ``masks`` are [layers, heads]; ``rows`` say which row each call of attention has, in the order of the calls.
    """
    remaining = iter(rows)

    def multiply(output: Tensor, weights: Tensor) -> AttentionOutputs:
        name, layer = next(remaining)
        if name not in masks:
            return output, weights
        mask_H1 = masks[name][layer][:, None]
        return output * mask_H1, weights * mask_H1[:, None]

    return changed(multiply)


def attend(module: nn.Module, *tensors: Tensor | None, **options: Any) -> AttentionOutputs:
    """The eager function of the model that ``module`` is from; then the masks, if there are any."""
    eager = inspect.unwrap(type(module).forward).__globals__["eager_attention_forward"]
    output, weights = eager(module, *tensors, **options)
    change = _CHANGE.get()
    return change(output, weights) if change else (output, weights)
