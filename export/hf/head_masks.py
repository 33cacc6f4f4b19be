"""Find out whether a model can apply head masks, and which row of a mask belongs to which call of its attention."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from export.hf.heads import HEADS, AttentionOutputs, Row, attend, changed
from export.hf.wrapper import Wrapper


def take_head_masks(wrapper: Wrapper, drawn: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """The shapes of the masks, [layers, heads], that ``wrapper`` now accepts beside ``drawn``; empty if it cannot.

    It accepts masks if its model calls transformers' AttentionInterface once for each layer of weights. Then
    ``wrapper.rows`` are set to the rows of the masks, in the order of these calls.
    """
    AttentionInterface.register(HEADS, attend)
    AttentionMaskInterface.register(HEADS, eager_mask)
    model = wrapper.model
    recorded: list[Tensor] = []

    def record(outputs: AttentionOutputs, _query: Tensor, _key: Tensor) -> AttentionOutputs:
        recorded.append(outputs[1])
        return outputs

    with torch.inference_mode():
        eager = vars(wrapper(**drawn))
        masks = {name: of for name, of in wrapper.stacks.head_masks.items() if of in eager}
        layers = {(name, index): layer for name, of in masks.items() for index, layer in enumerate(eager[of])}
        shapes = {name: (len(eager[of]), eager[of].shape[2]) for name, of in masks.items()}
        ones = {name: torch.ones(shape) for name, shape in shapes.items()}
        try:
            model.set_attn_implementation(HEADS)
            with changed(record):
                alone = vars(wrapper(**drawn))
            wrapper.rows = tuple(_take(layers, weights) for weights in recorded)
            masked = vars(wrapper(**drawn, **ones))
            names = ("output", *masks.values())
            if not layers and all(torch.equal(x[name], eager[name]) for x in (alone, masked) for name in names):
                return shapes
        except (AttributeError, KeyError, ValueError, NotImplementedError):  # another attention function, or weights
            pass
    model.set_attn_implementation("eager")
    return {}


def _take(layers: dict[Row, Tensor], weights: Tensor) -> Row:
    """Remove the layer with these weights from ``layers`` and return its row; raise KeyError if there is none."""
    row = next((row for row, layer in layers.items() if torch.equal(layer, weights)), None)
    if row is None:
        raise KeyError("no layer has these weights")
    del layers[row]
    return row
