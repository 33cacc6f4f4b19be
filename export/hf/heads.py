"""Masks of heads: a number for each head of every layer, which multiplies its weights after the softmax.

transformers had the arguments ``head_mask``, ``decoder_head_mask`` and ``cross_attn_head_mask`` before version 5. Here
they are an attention function under a name of its own: the model's eager function, whose weights and outputs are
multiplied. Without a mask it is the eager function.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

if TYPE_CHECKING:
    from export.hf.wrapper import Wrapper

HEADS = "heed_heads"
Row = tuple[str, int]  # the name of a mask, and a layer
Attended = tuple[Tensor, Tensor]  # output [batch, queries, heads, width], weights [batch, heads, queries, keys]

_CHANGE: ContextVar[Callable[[Tensor, Tensor], Attended] | None] = ContextVar("_CHANGE", default=None)


@contextmanager
def _changed(change: Callable[[Tensor, Tensor], Attended]) -> Iterator[None]:
    """A context in which ``change`` is called with what each call of the attention ``HEADS`` returns."""
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

    def multiply(output: Tensor, weights: Tensor) -> Attended:
        name, layer = next(remaining)
        if name not in masks:
            return output, weights
        mask_H1 = masks[name][layer][:, None]
        return output * mask_H1, weights * mask_H1[:, None]

    return _changed(multiply)


def _attend(module: nn.Module, *tensors: Tensor | None, **options: Any) -> Attended:
    """The eager function of the model that ``module`` is from; then the masks, if there are any."""
    eager = inspect.unwrap(type(module).forward).__globals__["eager_attention_forward"]
    output, weights = eager(module, *tensors, **options)
    change = _CHANGE.get()
    return change(output, weights) if change else (output, weights)


def take_head_masks(wrapper: "Wrapper", drawn: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """The shapes of the masks, [layers, heads], that ``wrapper`` now takes beside ``drawn``; none if it takes none.

    It cannot where its model's attention is not called by transformers' AttentionInterface, once for each layer of
    weights. ``wrapper.rows`` are then the rows of the masks, in the order of these calls.
    """
    AttentionInterface.register(HEADS, _attend)
    AttentionMaskInterface.register(HEADS, eager_mask)
    model, masks = wrapper.model, wrapper.head_masks
    recorded: list[Tensor] = []

    def record(output: Tensor, weights: Tensor) -> Attended:
        recorded.append(weights)
        return output, weights

    with torch.inference_mode():
        eager = vars(wrapper(**drawn))
        layers = {(name, index): layer for name, of in masks.items() for index, layer in enumerate(eager[of])}
        shapes = {name: (len(eager[of]), eager[of].shape[2]) for name, of in masks.items()}
        ones = {name: torch.ones(shape) for name, shape in shapes.items()}
        try:
            model.set_attn_implementation(HEADS)
            with _changed(record):
                alone = vars(wrapper(**drawn))
            wrapper.rows = tuple(_take(layers, weights) for weights in recorded)
            masked = vars(wrapper(**drawn, **ones))
            names = ("output", *masks.values())
            if not layers and all(torch.equal(x[name], eager[name]) for x in (alone, masked) for name in names):
                return shapes
        except (KeyError, ValueError, NotImplementedError):  # another function, or weights that are not answered
            pass
    model.set_attn_implementation("eager")
    return {}


def _take(layers: dict[Row, Tensor], weights: Tensor) -> Row:
    """The layer that has these weights, which is removed from ``layers``; raises KeyError if none has."""
    row = next((row for row, layer in layers.items() if torch.equal(layer, weights)), None)
    if row is None:
        raise KeyError("no layer has these weights")
    del layers[row]
    return row
