"""Functions that all towers of patches share: find a tower by an argument, split pictures into whole patches."""

from collections.abc import Callable, Sequence
from inspect import signature

from torch import Tensor
from transformers import PreTrainedModel


def first_model(model: PreTrainedModel, is_wanted: Callable[[PreTrainedModel], bool]) -> PreTrainedModel | None:
    """``model``, or the first model in it, that ``is_wanted``."""
    models = (part for part in model.modules() if isinstance(part, PreTrainedModel))
    return next(filter(is_wanted, models), None)


def tower_taking(argument: str, model: PreTrainedModel) -> PreTrainedModel | None:
    """``model``, or the first model in it, whose class takes ``argument``."""
    return first_model(model, lambda part: argument in signature(type(part).forward).parameters)


def check_sides(sides: Sequence[int], unit: int) -> None:
    """Check that the ``sides`` of a picture are multiples of ``unit`` pixels.

    Raises:
        ValueError: one is not.
    """
    if any(side % unit for side in sides):
        raise ValueError(f"the sides of its pictures are multiples of {unit} pixels")


def split(pictures: Tensor, side: int, unit: int | None = None) -> Tensor:
    """The patches of pictures, [pictures, channels, height, width], of ``side`` pixels, by rows.

    The numbers of a patch are ordered by row, column and channel, as in transformers' image processors.

    Raises:
        ValueError: a side of a picture is not a multiple of ``unit``, by default of ``side``.
    """
    count, channels, *sides = pictures.shape
    check_sides(sides, unit or side)
    rows, columns = (length // side for length in sides)
    patches = pictures.reshape(count, channels, rows, side, columns, side).permute(0, 2, 4, 3, 5, 1)
    return patches.flatten(3).flatten(1, 2)
