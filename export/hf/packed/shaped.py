"""A tower that takes patches of pictures of any size with their rows and columns, as SigLIP 2's, called with pictures.

It resizes its table of positions to the rows and columns. Here all pictures have one size, so a graph has the result.
"""

from collections.abc import Callable
from math import prod
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from export.hf.packed.patches import first_model, split

RESIZE = "resize_positional_embeddings"  # method of the embeddings of a tower


def shaped_tower(model: PreTrainedModel) -> PreTrainedModel | None:
    """``model``, or the model in it, that resizes its table of positions to each picture."""
    return first_model(model, lambda part: hasattr(getattr(part, "embeddings", None), RESIZE))


def take_pictures_of_one_size(tower: Any) -> None:
    """Let ``tower`` take pictures, [pictures, channels, height, width], where no rows and columns are given."""
    resize: Callable[..., Tensor] = getattr(tower.embeddings, RESIZE)
    sizes: dict[Any, Tensor] = {}

    def resized(table: Tensor, shapes: Any, max_length: int) -> Tensor:
        if isinstance(shapes, Tensor):
            return resize(table, shapes, max_length)
        if (key := (*shapes, table.dtype)) not in sizes:
            sizes[key] = resize(table, torch.tensor([shapes]), prod(shapes))
        return sizes[key]

    setattr(tower.embeddings, RESIZE, resized)
    tower.forward = MethodType(_forward, tower)


def _forward(
    tower: Any,
    pixel_values: Tensor,
    pixel_attention_mask: Tensor | None = None,
    spatial_shapes: Any = None,
    **options: Any,
) -> Any:
    if spatial_shapes is None:
        spatial_shapes = [length // tower.config.patch_size for length in pixel_values.shape[2:]]
        pixel_values = split(pixel_values, tower.config.patch_size)
    return type(tower).forward(tower, pixel_values, pixel_attention_mask, spatial_shapes, **options)
