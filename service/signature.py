"""Tensors held against what a model's session declares: which there are, their ranks, fixed dimensions and rows."""

from collections.abc import Collection, Mapping

import numpy as np

from service.errors import Invalid, Malformed
from service.model import Model, Tensor
from service.shape import Dim, broadcasts, symbol


def hold(model: Model, inputs: Mapping[str, np.ndarray]) -> int:
    """Hold ``inputs``, whose types are known to be right, and answer their rows: 1 where there is no batch axis.

    Raises:
        Malformed: one that is required is missing.
        Invalid: a rank, a fixed dimension or a number of rows that does not fit.
    """
    _complete(model, inputs.keys())
    for name, array in inputs.items():
        if not _fits(model.inputs[name].shape, array.shape):
            expected, got = (",".join(map(str, dims)) for dims in (free(model.inputs[name]), array.shape))
            raise Invalid(
                f"unexpected shape for input '{name}' for model '{model.name}'. Expected [{expected}], got [{got}]"
            )
    return _rows(model, inputs) if model.max_batch_size else 1


def free(of: Tensor) -> list[int]:
    """The shape a tensor declares, -1 for each dimension that a request chooses."""
    return [int(symbol(dim)) if symbol(dim).isdecimal() else -1 for dim in of.shape]


def _complete(model: Model, given: Collection[str]) -> None:
    required = [name for name, of in model.inputs.items() if of.required]
    missing = [name for name in required if name not in given]
    if missing:
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
        if not declared or symbol(declared[0]) != model.batch_axis or (broadcasts(declared[0]) and len(array) == 1):
            continue
        if rows is not None and len(array) != rows:
            raise Invalid(f"input '{name}' batch size does not match other inputs for '{model.name}'")
        rows = len(array)
    if rows is not None and rows > model.max_batch_size:
        raise Invalid(f"inference request batch-size must be <= {model.max_batch_size} for '{model.name}'")
    return 1 if rows is None else rows
