"""Verify exported graphs: ONNX Runtime's error against the float64 reference is within a budget (``budget``).

In half precision the error of torch's own module determines the budget, so the same module in float32 must be within
the budget of float32.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from export.verification.budget import (
    DRAWS,
    JITTER,
    MORE_DRAWS,
    Reference,
    error_budget,
    largest_error,
    rounded,
)
from export.verification.sessions import Arrays, Sessions, input_names, run_outputs
from models.block import Block
from models.examples import SIZES, examples
from models.precision import upcast

CANONICAL = "model"
SHORT = ("documented", "distinct", "one_query")  # examples of few positions


@dataclass(frozen=True)
class Check:
    """The largest absolute error of one output in one example, and the allowed error."""

    graph: str
    example: str
    output: str
    error: float
    budget: float

    @property
    def ok(self) -> bool:
        """Whether the error is within the budget."""
        return self.error <= self.budget < np.inf  # infinite if plain numpy overflows: a check without meaning

    def __str__(self) -> str:
        return f"{self.graph} {self.example} {self.output}: error {self.error:.3g}, allowed {self.budget:.3g}"


def checks(
    block: Block, module: nn.Module, sessions: Sessions, fixed: Mapping[str, Mapping[str, bool]], large: bool
) -> Iterator[Check]:
    """Run every graph on every example whose inputs it has, and compare each of its outputs with the reference.

    ``fixed`` has the parameters that are constants in a graph, by the graph's name; it is run on examples with these
    values. A ``large`` module is run on short examples in one draw: the reference is slow, and the largest error of so
    many numbers hardly varies.

    Yields:
        A check for each output; for graphs other than the canonical one, also one for their difference from it.
    """

    def refer(inputs: Arrays, dtype: Any, module: nn.Module = module) -> dict[str, np.ndarray]:
        if block.dtype != "float32" and dtype == np.float32:
            return in_torch(block, module, inputs)
        return block.reference(module, inputs, dtype)

    def redrawn(draw: int) -> Reference:
        return partial(refer, module=_with_other_embeddings(module, draw))

    if block.dtype != "float32":
        yield from _in_float32(block, module)
    for example, unrounded in examples(block, SHORT if large else SIZES):
        inputs = rounded(unrounded, block.dtype)
        exact = refer(inputs, np.float64)
        by_ids = redrawn if "input_ids" in inputs else None
        budgets = error_budget(refer, inputs, 1 if large else DRAWS, block.dtype, by_ids, exact)
        canonical: Arrays = {}  # outputs of the canonical graph, which is the first and takes every example
        for graph, run in sessions.items():
            feeds = without_fixed(inputs, fixed.get(graph, {}))
            if feeds is None or not feeds.keys() <= input_names(run):
                continue
            names = [output.name for output in run.get_outputs()]
            outputs = run_outputs(run, names, feeds)
            errors = {name: largest_error(actual, exact[name]) for name, actual in outputs.items()}
            if any(error > budgets[name] for name, error in errors.items()) and not large:
                # A rare rounding error, or a wrong graph?
                budgets = error_budget(refer, inputs, MORE_DRAWS, block.dtype, by_ids, exact)
            for name, actual in outputs.items():
                yield Check(graph, example, name, errors[name], budgets[name])
                if graph != CANONICAL:  # each within its budget, so at most both budgets apart
                    error = largest_error(actual, canonical[name])
                    yield Check(f"{graph} beside {CANONICAL}", example, name, error, 2 * budgets[name])
            canonical = outputs if graph == CANONICAL else canonical


def without_fixed(inputs: Arrays, fixed: Mapping[str, bool]) -> dict[str, np.ndarray] | None:
    """The inputs without the parameters in ``fixed``; None if one of these is absent or has another value."""
    if any(name not in inputs or inputs[name] != value for name, value in fixed.items()):
        return None
    return {name: array for name, array in inputs.items() if name not in fixed}


def _with_other_embeddings(module: nn.Module, draw: int) -> nn.Module:
    """A copy of ``module`` whose embeddings are changed at random, by ``JITTER`` at most."""
    changed, rng = deepcopy(module), np.random.default_rng(draw)
    with torch.no_grad():
        for name, table in changed.named_parameters():
            if name.startswith("embeddings."):
                table.mul_(torch.from_numpy(1 + JITTER * rng.uniform(-1, 1, tuple(table.shape))))
    return changed


def _in_float32(block: Block, module: nn.Module) -> Iterator[Check]:
    """Check the torch module in float32: half precision's budget is its error, so it must compute the formula."""

    def refer(inputs: Arrays, dtype: Any) -> dict[str, np.ndarray]:
        return block.reference(module, inputs, dtype)

    full, block32 = deepcopy(module).float(), replace(block, dtype="float32")
    for example, inputs in examples(block, SHORT):
        exact = refer(inputs, np.float64)
        budgets = error_budget(refer, inputs, exact=exact)
        outputs = in_torch(block32, full, inputs)
        errors = {name: largest_error(actual, exact[name]) for name, actual in outputs.items()}
        if any(error > budgets[name] for name, error in errors.items()):
            budgets = error_budget(refer, inputs, MORE_DRAWS, exact=exact)  # a rare rounding error, or a wrong graph?
        for name, error in errors.items():
            yield Check("torch in float32", example, name, error, budgets[name])


def in_torch(block: Block, module: nn.Module, inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs of ``module`` on the CPU, with float tensors of ``inputs`` in the type of the block.

    Those with fewer bits are returned as float32.
    """
    dtype = getattr(torch, block.dtype)
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in inputs.items()}
    tensors = {name: x.to(dtype) if x.ndim and x.is_floating_point() else x for name, x in tensors.items()}
    with torch.inference_mode():
        attended = module(**tensors)
    return {name: upcast(getattr(attended, name)).numpy() for name in block.outputs}
