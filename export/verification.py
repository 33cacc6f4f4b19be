"""Verify exported graphs: ONNX Runtime's error against the float64 reference is within a budget.

The budget of an output is twice the error of plain float32 numpy on the same inputs, plus one unit in the last place of
the output's largest number. A rounding error is random, so numpy's error is the largest over several draws: copies of
the inputs with random changes of up to a thousandth (or two units in the last place). Token ids cannot change, so their
embeddings do.

In float16 and bfloat16, inputs and weights are rounded first, and the error of torch's own module in that type on the
CPU takes the place of numpy's. The same module in float32 must be within the budget of float32.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import torch
from onnx import TensorProto
from torch import nn

from models.block import Block
from models.examples import SIZES, examples

Arrays = Mapping[str, np.ndarray]
Reference = Callable[[Arrays, Any], dict[str, np.ndarray]]
Sessions = Mapping[str, onnxruntime.InferenceSession]
CPU = "CPUExecutionProvider"
BFLOAT16 = "tensor(bfloat16)"
HALVES = {"tensor(float16)": np.dtype(np.float16), BFLOAT16: np.dtype(ml_dtypes.bfloat16)}
CANONICAL = "model"
JITTER = 1e-3  # relative change of the inputs between draws
DRAWS = 6
MORE_DRAWS = 64  # before a check fails
MANY = 30_000  # weights, of which a DRAWS-th of the draws is enough: their largest error hardly varies
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
    """Run every graph on every example with inputs it has, and compare each of its outputs with the reference.

    ``fixed`` has the parameters that are constants in a graph, by the graph's name; it is run on examples with these
    values. A ``large`` module is run on short examples in one draw, as the reference is slow and its many numbers
    are draws enough.

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
    """Check the torch module in float32: in half precision its error is the budget, so it must be the formula."""

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
    """The outputs of ``module`` on the CPU as float32, with float tensors of ``inputs`` in the type of the block."""
    dtype = getattr(torch, block.dtype)
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in inputs.items()}
    tensors = {name: x.to(dtype) if x.ndim and x.is_floating_point() else x for name, x in tensors.items()}
    with torch.inference_mode():
        attended = module(**tensors)
    return {name: getattr(attended, name).float().numpy() for name in block.outputs}


def rounded(inputs: Arrays, dtype: str) -> dict[str, np.ndarray]:
    """The inputs rounded to ``dtype``, as float32; parameters and integers are unchanged."""
    return {
        name: array.astype(dtype).astype(np.float32) if array.ndim and array.dtype == np.float32 else array
        for name, array in inputs.items()
    }


def run_outputs(run: onnxruntime.InferenceSession, names: Sequence[str], inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs ``names`` of a session on any provider; those in half precision are returned as float32."""
    types = {
        value.name: value.type for value in [*run.get_inputs(), *run.get_overridable_initializers(), *run.get_outputs()]
    }
    feeds = {name: array.astype(HALVES.get(types[name], array.dtype)) for name, array in inputs.items()}
    if BFLOAT16 in types.values():  # numpy, and so session.run, has no such type
        binding = run.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, _value(array))
        for name in names:
            binding.bind_output(name, "cpu")  # whichever device computes it
        run.run_with_iobinding(binding)
        outputs = [_array(value) for value in binding.get_outputs()]
    else:
        outputs = run.run(names, feeds)
    return {
        name: array.astype(np.float32) if types[name] in HALVES else array
        for name, array in zip(names, outputs, strict=True)
    }


def _value(array: np.ndarray) -> onnxruntime.OrtValue:
    if array.dtype != HALVES[BFLOAT16]:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), TensorProto.BFLOAT16)


def _array(value: onnxruntime.OrtValue) -> np.ndarray:
    if value.data_type() != BFLOAT16:
        array: np.ndarray = value.numpy()
        return array
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(content, HALVES[BFLOAT16]).reshape(value.shape())


def session(
    graph: bytes | Path, folder: Path | None = None, provider: str = CPU, prepack: bool = True
) -> onnxruntime.InferenceSession:
    """A session of ``graph`` on one thread of the CPU, or on another ``provider``.

    ``folder`` has the external data of a graph that is passed as bytes. Without ``prepack`` it is mapped, not copied.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # more would compete with exports in other processes
    options.log_severity_level = 3  # errors; its warnings report every optional input
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return onnxruntime.InferenceSession(graph, options, providers=[provider])


def input_names(run: onnxruntime.InferenceSession) -> set[str]:
    """The names of the inputs of a session, with the optional ones."""
    return {value.name for value in [*run.get_inputs(), *run.get_overridable_initializers()]}


def error_budget(
    reference: Reference,
    inputs: Arrays,
    draws: int = DRAWS,
    dtype: str = "float32",
    redrawn: Callable[[int], Reference] | None = None,
    exact: Arrays | None = None,
) -> dict[str, float]:
    """The largest absolute error allowed for each output, as the docstring of this module defines it.

    ``reference(inputs, np.float64)`` returns the exact outputs, and ``reference(inputs, np.float32)`` plain ones, which
    are no more precise than ``dtype``, the type of the inputs. ``redrawn(k)`` is the reference of draw k, if that is
    another one. ``exact`` is ``reference(inputs, np.float64)``, if it is known.
    """
    eps = torch.finfo(getattr(torch, dtype)).eps
    rng = np.random.default_rng(0)
    worst: dict[str, float] = {}
    largest: dict[str, float] = {}
    for k in range(draws):
        drawn = inputs if k == 0 else rounded({name: _jittered(x, rng, eps) for name, x in inputs.items()}, dtype)
        refer = redrawn(k) if redrawn and k else reference
        wide = refer(drawn, np.float64) if k or exact is None else exact
        plain = refer(drawn, np.float32)
        for name in plain:
            worst[name] = max(worst.get(name, 0.0), largest_error(plain[name], wide[name]))
            finite = wide[name][np.isfinite(wide[name])]
            largest[name] = max(largest.get(name, 0.0), float(np.abs(finite).max(initial=0.0)))
        if wide["weights"].size > MANY and DRAWS * (k + 1) >= draws:
            break
    return {name: 2 * worst[name] + eps * largest[name] for name in worst}


def largest_error(actual: np.ndarray, exact: np.ndarray) -> float:
    """max |actual - exact|; infinite if shapes differ, or if a number that is not finite in either differs."""
    if actual.shape != exact.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        error = np.abs(actual - exact).max(initial=0.0)
    if np.isfinite(error):  # and so are all numbers
        return float(error)
    finite = np.isfinite(exact)
    if not np.array_equal(actual[~finite], exact[~finite]):
        return np.inf
    error = np.abs(actual[finite] - exact[finite]).max(initial=0.0)
    return np.inf if np.isnan(error) else float(error)


def _jittered(array: np.ndarray, rng: np.random.Generator, eps: float) -> np.ndarray:
    if array.ndim == 0 or array.dtype != np.float32:
        return array
    return array * (1 + max(JITTER, 2 * eps) * rng.uniform(-1, 1, array.shape)).astype(np.float32)
