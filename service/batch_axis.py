"""Whether a model takes batches: every tensor it takes and answers begins with the same free dimension."""

from service.model import Model
from service.shape import symbol


def has_batch_axis(model: Model) -> bool:
    """Single numbers (shape ``()``) belong to no row."""
    tensors = [of for of in (*model.inputs.values(), *model.outputs.values()) if of.shape or of.name in model.outputs]
    first = {symbol(of.shape[0]) if of.shape and isinstance(of.shape[0], str) else None for of in tensors}
    return len(first) == 1 and None not in first and all(name and name.isidentifier() for name in first)
