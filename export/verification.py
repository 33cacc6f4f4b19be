"""Is the exported graph right? ONNX Runtime against the float64 reference, within a budget that comes from data.

The budget of an output is twice the error that plain float32 numpy makes on the same inputs, and one unit in the
last place of its largest number. Rounding is luck, so numpy's error is the
largest over several copies of the inputs, each a thousandth apart (or two units in the last place).

In float16 and bfloat16 inputs and weights are rounded first, and the error is that of torch's own module in that type
on the CPU; the same module in float32 has to be within the budget of float32.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
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
Sessions = Mapping[str, onnxruntime.InferenceSession]
CPU = "CPUExecutionProvider"
BFLOAT16 = "tensor(bfloat16)"
HALVES = {"tensor(float16)": np.dtype(np.float16), BFLOAT16: np.dtype(ml_dtypes.bfloat16)}
CANONICAL = "model"
JITTER = 1e-3
DRAWS = 6
MORE_DRAWS = 64  # before an error is believed
FEW_DRAWS = 2
MANY = 30_000  # numbers; few draws of so many are no luck
SHORT = ("documented", "distinct", "one_query")


@dataclass(frozen=True)
class Check:
    """One output of one example: the largest absolute error, and what is allowed."""

    graph: str
    example: str
    output: str
    error: float
    budget: float

    @property
    def ok(self) -> bool:
        return self.error <= self.budget < np.inf  # infinite where plain numpy overflows: it proves nothing

    def __str__(self) -> str:
        return f"{self.graph} {self.example} {self.output}: error {self.error:.3g}, allowed {self.budget:.3g}"


def checks(
    block: Block, module: nn.Module, sessions: Sessions, fixed: Mapping[str, Mapping[str, bool]], large: bool
) -> Iterator[Check]:
    """Run every graph on every example it can take, and compare each of its outputs.

    ``fixed`` names the parameters that a graph holds at one value; it takes the examples that give that value. With a
    ``large`` module the reference is slow, and each row of it is many draws: short examples, drawn once.
    """

    def refer(inputs: Arrays, dtype: Any) -> dict[str, np.ndarray]:
        if block.dtype != "float32" and dtype == np.float32:
            return in_torch(block, module, inputs)
        return block.reference(module, inputs, dtype)

    if block.dtype != "float32":
        yield from _in_float32(block, module)
    for example, drawn in examples(block, SHORT if large else SIZES):
        inputs = rounded(drawn, block.dtype)
        exact = refer(inputs, np.float64)
        budgets = error_budget(refer, inputs, 1 if large else DRAWS, block.dtype)
        canonical: Arrays = {}  # what the canonical graph, which is the first and takes every example, answers
        for graph, run in sessions.items():
            given = without(inputs, fixed.get(graph, {}))
            if given is None or not given.keys() <= taken(run):
                continue
            names = [output.name for output in run.get_outputs()]
            found = answered(run, names, given)
            errors = {name: largest_error(got, exact[name]) for name, got in found.items()}
            if any(error > budgets[name] for name, error in errors.items()) and not large:
                budgets = error_budget(refer, inputs, MORE_DRAWS, block.dtype)  # luck, or wrong?
            for name, got in found.items():
                yield Check(graph, example, name, errors[name], budgets[name])
                if graph != CANONICAL:  # each within its budget, so at most both budgets apart
                    error = largest_error(got, canonical[name])
                    yield Check(f"{graph} beside {CANONICAL}", example, name, error, 2 * budgets[name])
            canonical = found if graph == CANONICAL else canonical


def without(inputs: Arrays, fixed: Mapping[str, bool]) -> dict[str, np.ndarray] | None:
    """The inputs less what is fixed; None where one of them has, or is left at, another value."""
    if any(name not in inputs or inputs[name] != value for name, value in fixed.items()):
        return None
    return {name: array for name, array in inputs.items() if name not in fixed}


def _in_float32(block: Block, module: nn.Module) -> Iterator[Check]:
    """The torch module whose rounding is measured, in float32: is it the formula at all?"""

    def refer(inputs: Arrays, dtype: Any) -> dict[str, np.ndarray]:
        return block.reference(module, inputs, dtype)

    full, block32 = deepcopy(module).float(), replace(block, dtype="float32")
    for example, inputs in examples(block, SHORT):
        exact, budgets = refer(inputs, np.float64), error_budget(refer, inputs)
        found = in_torch(block32, full, inputs)
        errors = {name: largest_error(got, exact[name]) for name, got in found.items()}
        if any(error > budgets[name] for name, error in errors.items()):
            budgets = error_budget(refer, inputs, MORE_DRAWS)  # luck, or wrong?
        for name, error in errors.items():
            yield Check("torch in float32", example, name, error, budgets[name])


def in_torch(block: Block, module: nn.Module, inputs: Arrays) -> dict[str, np.ndarray]:
    """What ``module`` answers on the CPU, each tensor of ``inputs`` in the type of the block."""
    half = getattr(torch, block.dtype)
    given = {name: torch.from_numpy(np.asarray(array)) for name, array in inputs.items()}
    given = {name: x.to(half) if x.ndim and x.is_floating_point() else x for name, x in given.items()}
    with torch.inference_mode():
        attended = module(**given)
    return {name: getattr(attended, name).float().numpy() for name in block.outputs}


def rounded(inputs: Arrays, dtype: str) -> dict[str, np.ndarray]:
    """The nearest numbers that ``dtype`` holds, as float32; parameters and whole numbers as they are."""
    return {
        name: array.astype(dtype).astype(np.float32) if array.ndim and array.dtype == np.float32 else array
        for name, array in inputs.items()
    }


def answered(run: onnxruntime.InferenceSession, names: Sequence[str], inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs ``names`` of ``run``, on whatever provider it is; as float32 where they are of half precision."""
    types = {of.name: of.type for of in [*run.get_inputs(), *run.get_overridable_initializers(), *run.get_outputs()]}
    given = {name: array.astype(HALVES.get(types[name], array.dtype)) for name, array in inputs.items()}
    if BFLOAT16 in types.values():  # which ONNX Runtime does not give as numpy arrays
        binding = run.io_binding()
        for name, array in given.items():
            binding.bind_ortvalue_input(name, _value(array))
        for name in names:
            binding.bind_output(name, "cpu")  # wherever it is computed
        run.run_with_iobinding(binding)
        found = [_array(value) for value in binding.get_outputs()]
    else:
        found = run.run(names, given)
    return {
        name: array.astype(np.float32) if types[name] in HALVES else array
        for name, array in zip(names, found, strict=True)
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


def session(graph: bytes | Path, folder: Path | None = None, provider: str = CPU) -> onnxruntime.InferenceSession:
    """``graph`` on one thread of the CPU, or on another ``provider``.

    The external data of one that is no file is in ``folder``.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # more would spin between such small runs, beside other blocks' exports
    options.log_severity_level = 3  # below errors it reports every optional input
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return onnxruntime.InferenceSession(graph, options, providers=[provider])


def taken(run: onnxruntime.InferenceSession) -> set[str]:
    """The names of the inputs a session takes, optional ones too."""
    return {of.name for of in [*run.get_inputs(), *run.get_overridable_initializers()]}


def error_budget(
    reference: Callable[[Arrays, Any], dict[str, np.ndarray]],
    inputs: Arrays,
    draws: int = DRAWS,
    dtype: str = "float32",
) -> dict[str, float]:
    """The largest absolute error allowed for each output; ``reference(inputs, dtype)`` answers in numpy.

    What it answers for float32 is plain: no more precise than ``dtype``, which the inputs are of.
    """
    eps = torch.finfo(getattr(torch, dtype)).eps
    rng = np.random.default_rng(0)
    worst: dict[str, float] = {}
    largest: dict[str, float] = {}
    for k in range(draws):
        drawn = inputs if k == 0 else rounded({name: _jittered(x, rng, eps) for name, x in inputs.items()}, dtype)
        exact, plain = reference(drawn, np.float64), reference(drawn, np.float32)
        for name in plain:
            worst[name] = max(worst.get(name, 0.0), largest_error(plain[name], exact[name]))
            finite = exact[name][np.isfinite(exact[name])]
            largest[name] = max(largest.get(name, 0.0), float(np.abs(finite).max(initial=0.0)))
        if exact["weights"].size > MANY and k + 1 >= FEW_DRAWS:
            break
    return {name: 2 * worst[name] + eps * largest[name] for name in worst}


def largest_error(got: np.ndarray, exact: np.ndarray) -> float:
    """max |got - exact|; infinite where shapes differ, or where one is not finite and the other is not the same."""
    if got.shape != exact.shape:
        return np.inf
    finite = np.isfinite(exact)
    if not finite.all():
        if not np.array_equal(got[~finite], exact[~finite]):
            return np.inf
        got, exact = got[finite], exact[finite]
    error = np.abs(got - exact).max(initial=0.0)
    return np.inf if np.isnan(error) else float(error)


def _jittered(array: np.ndarray, rng: np.random.Generator, eps: float) -> np.ndarray:
    if array.ndim == 0 or array.dtype != np.float32:
        return array
    return array * (1 + max(JITTER, 2 * eps) * rng.uniform(-1, 1, array.shape)).astype(np.float32)
