"""Checks of a request's tensors against a model's inputs: their names, ranks, fixed dimensions and rows."""

from collections.abc import Collection, Mapping

import numpy as np

from service.base.errors import Invalid, Malformed
from service.model.model import Model
from service.tensors.dims import Dim, broadcasts, symbol
from service.tensors.spec import TensorSpec


def check_inputs(model: Model, inputs: Mapping[str, np.ndarray], outputs: Collection[str]) -> int:
    """Check the shapes of ``inputs``, whose types have been checked. Returns their rows, 1 without a batch axis.

    Raises:
        Malformed: an input that ``outputs`` require is missing.
        Invalid: a rank, a fixed dimension or a number of rows does not match the model's.
    """
    check_complete(model, inputs.keys(), outputs)
    for name, array in inputs.items():
        if not _fits(model.inputs[name].shape, array.shape):
            expected, got = (",".join(map(str, dims)) for dims in (wire_shape(model.inputs[name]), array.shape))
            raise Invalid(
                f"unexpected shape for input '{name}' for model '{model.name}'. Expected [{expected}], got [{got}]"
            )
    return _rows(model, inputs) if model.max_batch_size else 1


def wire_shape(tensor: TensorSpec) -> list[int]:
    """The shape in the protocol's metadata: -1 for each dimension that a request chooses."""
    return [int(symbol(dim)) if symbol(dim).isdecimal() else -1 for dim in tensor.shape]


def check_complete(model: Model, given: Collection[str], outputs: Collection[str]) -> None:
    """Raises Malformed: an input that ``outputs`` require is not among ``given``."""
    missing = model.signature.missing(given, outputs)
    if missing:
        required = [name for name, of in model.inputs.items() if of.required]
        raise Malformed(
            f"expected {len(required)} inputs but got {len(given)} inputs for model '{model.name}'. "
            f"Got input(s) {list(given)}, but missing required input(s) {missing}. "
            "Please provide all required input(s)."
        )


def _fits(declared: tuple[Dim, ...], shape: tuple[int, ...]) -> bool:
    return len(declared) == len(shape) and all(
        not symbol(dim).isdecimal() or got == int(symbol(dim)) or (got == 1 and broadcasts(dim))
        for dim, got in zip(declared, shape, strict=True)
    )


def _rows(model: Model, inputs: Mapping[str, np.ndarray]) -> int:
    rows = None
    for name, array in inputs.items():
        declared = model.inputs[name].shape
        if name not in model.batched or (broadcasts(declared[0]) and len(array) == 1):
            continue
        if rows is not None and len(array) != rows:
            raise Invalid(f"input '{name}' batch size does not match other inputs for '{model.name}'")
        rows = len(array)
    if rows is not None and rows > model.max_batch_size:
        raise Invalid(f"inference request batch-size must be <= {model.max_batch_size} for '{model.name}'")
    return 1 if rows is None else rows
