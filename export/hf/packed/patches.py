"""A tower that takes the patches of each picture with their columns and rows, as Gemma 4's, called with pictures."""

from collections.abc import Sequence
from inspect import signature
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from export.hf.packed.at_once import AllAtOnce

POSITIONS = "pixel_position_ids"  # argument of a tower: [pictures, patches, 2]


def patch_tower(model: PreTrainedModel) -> PreTrainedModel | None:
    """``model``, or the model in it, that takes patches with their positions."""
    models = (part for part in model.modules() if isinstance(part, PreTrainedModel))
    return next((part for part in models if POSITIONS in signature(type(part).forward).parameters), None)


def unit_of_patches(tower: Any) -> int:
    """The pixels of which the sides of a picture are multiples: those of the patches that become a token."""
    return int(tower.config.patch_size * tower.config.pooling_kernel_size)


def patches_of(tower: Any, pictures: Tensor) -> tuple[Tensor, Tensor]:
    """The patches of pictures, [pictures, channels, height, width], and the column and row of each.

    Of a patch the numbers are ordered by row, column and channel, as in transformers' image processor.

    Raises:
        ValueError: a side is no multiple of the unit.
    """
    unit, side = unit_of_patches(tower), tower.config.patch_size
    sides: Sequence[int] = pictures.shape[2:]
    if any(length % unit for length in sides):
        raise ValueError(f"the sides of its pictures are multiples of {unit} pixels")
    rows, columns = (length // side for length in sides)
    split = pictures.reshape(-1, pictures.shape[1], rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
    place = torch.arange(rows * columns)
    positions = torch.stack([place % columns, place // columns], dim=-1)
    return split.flatten(3).flatten(1, 2), positions.expand(pictures.shape[0], -1, -1)


def take_whole_pictures(tower: PreTrainedModel) -> None:
    """Let ``tower`` take pictures, [pictures, channels, height, width], where no positions are given."""
    tower.main_input_name = "pixel_values"
    tower.forward = MethodType(_forward, tower)


def _forward(tower: Any, pixel_values: Tensor, pixel_position_ids: Tensor | None = None, **options: Any) -> Any:
    if pixel_position_ids is None:
        pixel_values, pixel_position_ids = patches_of(tower, pixel_values)
    with AllAtOnce():
        return type(tower).forward(tower, pixel_values, pixel_position_ids, **options)
