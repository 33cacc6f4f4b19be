"""A mask of heads: a number for each head of every layer, which multiplies its weights after the softmax.

transformers had the argument ``head_mask`` before version 5. Here it is an attention function under a name of its own:
the model's eager function, whose weights and outputs are multiplied. Without a mask it is the eager function.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

HEADS = "heed_heads"


class _Layers:
    """The rows of a mask, [layers, heads], for one call of attention after the other."""

    def __init__(self, mask: Tensor) -> None:
        self._mask = mask
        self.calls = 0

    def next(self) -> Tensor:
        self.calls += 1
        return self._mask[self.calls - 1]


_LAYERS: ContextVar[_Layers | None] = ContextVar("_LAYERS", default=None)


@contextmanager
def heads_masked(mask: Tensor) -> Iterator[_Layers]:
    """A context in which a model with the attention ``HEADS`` multiplies the weights of each head by ``mask``."""
    layers = _Layers(mask)
    token = _LAYERS.set(layers)
    try:
        yield layers
    finally:
        _LAYERS.reset(token)


def _attend(module: nn.Module, *tensors: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
    """The eager function of the model that ``module`` is from; then the mask, if there is one."""
    eager = inspect.unwrap(type(module).forward).__globals__["eager_attention_forward"]
    # The output is [batch, queries, heads, width], the weights are [batch, heads, queries, keys].
    output, weights = eager(module, *tensors, **options)
    layers = _LAYERS.get()
    if layers is None:
        return output, weights
    mask_H1 = layers.next()[:, None]
    return output * mask_H1, weights * mask_H1[:, None]


def take_head_mask(model: PreTrainedModel, call: Any, drawn: Mapping[str, Tensor]) -> tuple[int, int] | None:
    """The shape of the mask that ``model`` now takes, [layers, heads]; None for a model that cannot take one.

    It cannot where its attention is not called by transformers' AttentionInterface, once for each layer of weights.
    ``call(**drawn)`` runs the model, and returns its ``weights`` and ``output``.
    """
    AttentionInterface.register(HEADS, _attend)
    AttentionMaskInterface.register(HEADS, eager_mask)
    with torch.inference_mode():
        eager = call(**drawn)
        layers, _, heads = eager.weights.shape[:3]
        try:
            model.set_attn_implementation(HEADS)
            alone = call(**drawn)
            with heads_masked(torch.ones(layers, heads)) as counted:
                ones = call(**drawn)
            answers = (alone, ones)
            equal = all(torch.equal(x.weights, eager.weights) and torch.equal(x.output, eager.output) for x in answers)
            if equal and counted.calls == layers:
                return layers, heads
        except (KeyError, IndexError, ValueError, NotImplementedError):  # another function, or more calls than layers
            pass
    model.set_attn_implementation("eager")
    return None
