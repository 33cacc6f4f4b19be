"""Whether a model takes batches: every tensor it needs and answers begins with the same free dimension."""

from service.model import Model
from service.shape import symbol


def batch_axis(model: Model) -> str | None:
    """The name of that dimension. Single numbers (shape ``()``) belong to no row."""
    needed = [of for of in model.inputs.values() if of.required and of.shape]
    first = {of.shape[0] if of.shape else None for of in (*needed, *model.outputs.values())}
    (name, *others) = first or {None}
    return name if not others and needed and isinstance(name, str) and symbol(name).isidentifier() else None
