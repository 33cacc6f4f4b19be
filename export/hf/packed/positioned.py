"""A tower that takes the patches of each picture with their columns and rows, as Gemma 4's, called with pictures."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from export.hf.packed.at_once import AllAtOnce
from export.hf.packed.patches import split, tower_taking

POSITIONS = "pixel_position_ids"  # argument of a tower: [pictures, patches, 2]


def positioned_tower(model: PreTrainedModel) -> PreTrainedModel | None:
    """``model``, or the model in it, that takes patches with their positions."""
    return tower_taking(POSITIONS, model)


def patches_of(tower: Any, pictures: Tensor) -> tuple[Tensor, Tensor]:
    """The patches of pictures, [pictures, channels, height, width], and the column and row of each.

    Raises:
        ValueError: a side has no whole number of tokens.
    """
    side = tower.config.patch_size
    patches = split(pictures, side, side * tower.config.pooling_kernel_size)
    place, columns = torch.arange(patches.shape[1]), pictures.shape[3] // side
    positions = torch.stack([place % columns, place // columns], dim=-1)
    return patches, positions.expand(pictures.shape[0], -1, -1)


def take_whole_pictures(tower: PreTrainedModel) -> None:
    """Let ``tower`` take pictures, [pictures, channels, height, width], where no positions are given."""
    tower.main_input_name = "pixel_values"
    tower.forward = MethodType(_forward, tower)


def _forward(tower: Any, pixel_values: Tensor, pixel_position_ids: Tensor | None = None, **options: Any) -> Any:
    if pixel_position_ids is None:
        pixel_values, pixel_position_ids = patches_of(tower, pixel_values)
    with AllAtOnce():
        return type(tower).forward(tower, pixel_values, pixel_position_ids, **options)
