"""``python -m service.model.batch_trial FOLDER``: print why the foreign model in FOLDER has no batch axis, or nothing.

Two different rows are run alone and together. The first axis of every input and output is the batch axis if the joined
run computes each row as its own run does. Processor time, memory and the sizes of axes are limited.
"""

import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np

from service.model.graph import Arrays
from service.model.loader import open_version
from service.model.model import Model
from service.ort.provider import Provider
from service.tensors.bfloat16 import astype, to_float32
from service.tensors.dims import symbol
from service.tensors.spec import TensorSpec

PROCESSOR_SECONDS = 10
MEMORY_BYTES = 4 << 30
OOM_SCORE = Path("/proc/self/oom_score_adj")
# Sizes of free axes other than the first. 3 comes first, as an axis of size 1 or 2 could be mistaken for the rows; some
# models need 1, or the size of an image.
SIZES = (3, 1, 16, 64, 224)
MAX_INPUT_NUMBERS = 1 << 22
# The integers of the two rows: small, as ids have to be in range; those without 0 come first, as models may divide.
INTEGERS = ((1, 2), (0, 1), (0, 0))
TOLERANCE = 0.01  # relative to the largest number of an output: a batch may be summed in another order
MAX_REASON_LENGTH = 300


def main(folder: str) -> None:
    """Print why the model in ``folder`` has no batch axis; nothing where it has one."""
    _limit_resources()
    print(refusal(open_version(Path(folder), Provider("cpu", "trial run"), 1)))


def refusal(model: Model) -> str:
    """Why the first axis of the tensors is no batch axis; empty where it is."""
    reason = "no inputs are small enough for a trial run"
    for rows in _candidates(model):
        try:
            alone = [_run(model, row) for row in rows]
        except Exception as error:
            reason = f"a trial run failed: {_first_line(error)}"
            continue  # it may accept other sizes or other numbers
        try:
            together = _run(model, {name: _joined(model.inputs[name], rows) for name in rows[0]})
        except Exception as error:
            return f"a trial run of two rows failed, although each row alone succeeded: {_first_line(error)}"
        return _difference(alone, together)
    return reason


def _candidates(model: Model) -> Iterator[list[dict[str, np.ndarray]]]:
    """Pairs of rows to try, the most promising first."""
    required = [tensor for tensor in model.inputs.values() if tensor.required]
    has_integers = any(tensor.dtype.kind in "iubO" for tensor in required)
    is_free = any(not symbol(dim).isdecimal() for tensor in required for dim in tensor.shape[1:])
    for size in SIZES if is_free else SIZES[:1]:
        if all(prod(_row_shape(tensor, size)) <= MAX_INPUT_NUMBERS for tensor in required):
            for integers in INTEGERS if has_integers else INTEGERS[:1]:
                rng = np.random.default_rng(0)
                yield [{tensor.name: _drawn(tensor, size, integer, rng) for tensor in required} for integer in integers]


def _row_shape(tensor: TensorSpec, size: int) -> list[int]:
    """The shape of one row, with ``size`` for each free dimension."""
    dims = [int(symbol(dim)) if symbol(dim).isdecimal() else size for dim in tensor.shape]
    return [1, *dims[1:]] if dims else []


def _drawn(tensor: TensorSpec, size: int, integer: int, rng: np.random.Generator) -> np.ndarray:
    """One row of an input; a text is the integer in digits, as a model may parse a number from it."""
    shape = _row_shape(tensor, size)
    if not shape:
        return astype(np.array("1" if tensor.dtype.kind == "O" else 1), tensor.dtype)  # the same for both rows
    if tensor.dtype.kind == "O":
        return np.full(shape, str(integer), object)
    if tensor.dtype.kind in "iub":
        return np.full(shape, integer).astype(tensor.dtype)
    return astype(rng.uniform(0.1, 1.0, shape), tensor.dtype)


def _joined(tensor: TensorSpec, rows: list[dict[str, np.ndarray]]) -> np.ndarray:
    return np.concatenate([row[tensor.name] for row in rows]) if tensor.shape else rows[0][tensor.name]


def _run(model: Model, inputs: Arrays) -> dict[str, np.ndarray]:
    return model.run(model.graphs[-1], inputs, list(model.outputs))


def _difference(alone: list[dict[str, np.ndarray]], together: dict[str, np.ndarray]) -> str:
    """How the outputs of two rows differ from those of each row alone; empty where they do not."""
    for name, array in together.items():
        rows = [outputs[name] for outputs in alone]
        if any(row.ndim == 0 or len(row) != 1 for row in rows) or array.ndim == 0 or len(array) != len(rows):
            shapes = [list(row.shape) for row in (*rows, array)]
            return f"in a trial run the first dimension of output '{name}' did not follow the rows: {shapes}"
        if [row.shape[1:] for row in rows] != [array.shape[1:]] * len(rows):
            return f"in a trial run the shape of output '{name}' depended on the number of rows"
        if not _equal(np.concatenate(rows), array):
            return f"in a trial run a row of output '{name}' depended on the other rows"
    return ""


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    one, other = to_float32(one), to_float32(other)
    if one.dtype.kind != "f":
        return bool((one == other).all())
    largest = np.abs(one[np.isfinite(one)]).max(initial=0.0)
    return bool(np.allclose(one, other, rtol=0, atol=TOLERANCE * float(largest), equal_nan=True))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:MAX_REASON_LENGTH]


def _limit_resources() -> None:
    """Limit the resources of this process. Where memory runs out, Linux ends it before the server."""
    for resource_id, limit in (
        (resource.RLIMIT_CPU, PROCESSOR_SECONDS),
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(OSError, ValueError):  # the system has no such limit, or a lower one
            resource.setrlimit(resource_id, (limit, limit + 1))  # of processor time: SIGXCPU, then SIGKILL
    with suppress(OSError):
        OOM_SCORE.write_text("1000")


if __name__ == "__main__":
    main(sys.argv[1])
