"""Masks of numbers: one with only 0 and 1 could be meant as booleans, so a request has to say that it is added."""

from collections.abc import Mapping

import numpy as np

from service.base.errors import Invalid
from service.model.model import Model
from service.tensors.bfloat16 import to_float32
from service.tensors.dims import broadcasts, symbol

ADDITIVE_MASK = "additive_mask"  # a field of the native API, a parameter of V2
FLAG = f"{ADDITIVE_MASK} true adds a mask that contains only 0 and 1 to the scores"
NOTE = (
    f"Integers are rejected as ambiguous, and so are floats that are only 0 and 1 (both), unless {ADDITIVE_MASK} is "
    "true. In JSON null means -inf."
)


def describe_input(model: Model, name: str) -> str:
    """The description of a block's input; for a mask with the values that it accepts, else with axes that may be 1."""
    assert model.spec is not None
    description = model.spec.inputs[name].description
    if name in model.masks:
        return f"{description} {NOTE}"
    axes = " and ".join(symbol(dim) for dim in model.inputs[name].shape if broadcasts(dim))
    return f"{description} Broadcasts: {axes} may be 1." if axes else description


def check_masks(model: Model, inputs: Mapping[str, np.ndarray]) -> None:
    """Check that no mask is ambiguous.

    Raises:
        Invalid: a mask has both 0 and 1, and no other number.
    """
    for name in model.masks:
        mask = to_float32(inputs[name]) if name in inputs else None
        if mask is not None and mask.min() == 0 and mask.max() == 1 and ((mask == 0) | (mask == 1)).all():
            raise Invalid(
                "contains only 0 and 1, which is ambiguous: send booleans (true = may attend), "
                f"or {ADDITIVE_MASK} true to add 0 and 1 to the scores",
                name,
            )
