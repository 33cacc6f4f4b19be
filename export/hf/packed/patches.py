"""What towers of patches have in common: an argument by which they are found, and sides of whole patches."""

from collections.abc import Sequence
from inspect import signature

from transformers import PreTrainedModel


def tower_taking(argument: str, model: PreTrainedModel) -> PreTrainedModel | None:
    """``model``, or the first model in it, whose class takes ``argument``."""
    models = (part for part in model.modules() if isinstance(part, PreTrainedModel))
    return next((part for part in models if argument in signature(type(part).forward).parameters), None)


def check_sides(sides: Sequence[int], unit: int) -> None:
    """Check that the ``sides`` of a picture are multiples of ``unit`` pixels.

    Raises:
        ValueError: one is not.
    """
    if any(side % unit for side in sides):
        raise ValueError(f"the sides of its pictures are multiples of {unit} pixels")
