"""The numbers with which a client makes ``pixel_values`` of a picture, and patches of positions."""

from dataclasses import asdict
from typing import Any

from service.model.model import Model
from service.model.spec import IMAGE_INPUT
from service.native.schemas import PreprocessorDescription

MAX_SPECIAL_TOKENS = 2  # [CLS] and the distillation token, beside registers


def describe_preprocessor(model: Model) -> PreprocessorDescription | None:
    """The description of the model's image processor; None for a model without one, or without images of one size."""
    if model.preprocessor is None or IMAGE_INPUT not in model.inputs or model.spec is None:
        return None
    _, *sizes = model.inputs[IMAGE_INPUT].shape
    if len(sizes) != 3 or not all(isinstance(size, int) for size in sizes):
        return None
    channels, height, width = map(int, sizes)
    patch_size = _patch_size(model.spec.config)
    return PreprocessorDescription(
        height=height,
        width=width,
        channels=channels,
        **asdict(model.preprocessor),
        patch_size=patch_size,
        special_tokens=_special_tokens(model, height, width, patch_size),
    )


def _patch_size(config: dict[str, Any]) -> int | None:
    """The side of the square patches; None where the config has none."""
    size = config.get("patch_size")
    if isinstance(size, list) and size and size.count(size[0]) == len(size):
        size = size[0]
    return size if type(size) is int and size > 0 else None


def _special_tokens(model: Model, height: int, width: int, patch_size: int | None) -> int | None:
    """The number of positions of the weights before the positions of the patches.

    These are the positions that are left when each patch has one. None where they are too many or too few for [CLS], a
    distillation token and registers: such a model has other positions, which may be behind the patches.
    """
    positions = model.outputs.get("vision_weights", model.outputs["weights"]).shape[-1]
    if patch_size is None or not isinstance(positions, int):
        return None
    assert model.spec is not None
    registers = model.spec.config.get("num_register_tokens", 0)
    special = positions - (height // patch_size) * (width // patch_size)
    return special if 0 <= special <= MAX_SPECIAL_TOKENS + registers else None
