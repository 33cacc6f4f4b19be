"""Which tensors of a model have a batch axis: a first axis with one row for each member of a batch.

A block names it, and so do most foreign models: the first dimension of every input and output has the same name. Where
the names differ, or there are none (scikit-learn's models, those of Triton's own tests), a trial run decides. It has a
process of its own (batch_trial.py): no check of a foreign graph can exclude that a run ends its process (INT64 Div of
-2**63 by -1), never returns, or fills the memory.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from service.model.spec import Signature
from service.tensors.dims import symbol
from service.tensors.spec import TensorSpec

TRIAL_SECONDS = 60  # of wall time; the trial limits its processor time itself
LARGEST_TRIAL_BYTES = 1 << 30  # of a version's files, which the trial loads a second time


@dataclass(frozen=True)
class BatchAxis:
    """The names of inputs and outputs whose first axis is the batch; none where there is a ``reason`` against it."""

    tensors: frozenset[str] = frozenset()
    reason: str = ""


def batch_axis(signature: Signature, folder: Path) -> BatchAxis:
    """The batch axis of the model in ``folder``. Single numbers (shape ``()``) have no rows."""
    inputs = [tensor for tensor in signature.inputs.values() if tensor.required and tensor.shape]
    outputs = list(signature.outputs.values())
    reason = _excluded(inputs, outputs)
    if reason:
        return BatchAxis(reason=reason)
    first = {tensor.shape[0] for tensor in (*inputs, *outputs)}
    (name, *others) = first
    if not others and isinstance(name, str) and symbol(name).isidentifier():
        every = (*signature.inputs.values(), *outputs)
        return BatchAxis(
            frozenset(tensor.name for tensor in every if tensor.shape and symbol(tensor.shape[0]) == symbol(name))
        )
    if signature.spec:
        return BatchAxis(reason=f"the first dimensions of its tensors differ: {', '.join(sorted(map(str, first)))}")
    reason = _refused_by_trial(folder)
    return BatchAxis(reason=reason) if reason else BatchAxis(frozenset(tensor.name for tensor in (*inputs, *outputs)))


def _excluded(inputs: list[TensorSpec], outputs: list[TensorSpec]) -> str:
    """Why the declared shapes alone exclude a batch axis; empty where they do not."""
    if not inputs:
        return "no required input has an axis"
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            if not tensor.shape:
                return f"{kind} '{tensor.name}' has no axis"
            if symbol(tensor.shape[0]).isdecimal():
                return f"{kind} '{tensor.name}' has the fixed first dimension {tensor.shape[0]}"
    names = {symbol(tensor.shape[0]) for tensor in (*inputs, *outputs) if tensor.shape[0] is not None}
    for tensor in (*inputs, *outputs):
        again = names.intersection(symbol(dim) for dim in tensor.shape[1:])
        if again:
            return f"dimension '{again.pop()}' is also a later dimension of '{tensor.name}'"
    return ""


def _refused_by_trial(folder: Path) -> str:
    """Why a trial run of the model in ``folder`` shows no batch axis; empty where it shows one."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if size > LARGEST_TRIAL_BYTES:
        return (
            f"first dimensions have no common name, and at {size:,} bytes the model is too large for a trial run "
            f"(at most {LARGEST_TRIAL_BYTES:,})"
        )
    command = [sys.executable, "-P", "-m", "service.model.batch_trial", str(folder.absolute())]
    own = str(Path(__file__).parents[2])  # first, as the user's folder may have a package of the name service, too
    paths = os.pathsep.join([own, *(os.path.abspath(entry) for entry in sys.path)])
    try:
        trial = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRIAL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"a trial run took longer than {TRIAL_SECONDS} s"
    except OSError as error:
        return f"no process could be started for a trial run: {error.strerror}"
    if trial.returncode < 0:
        return f"a trial run was killed by {signal.Signals(-trial.returncode).name}"
    if trial.returncode:
        return f"a trial run failed: {(trial.stderr.strip() or 'no message').splitlines()[-1]}"
    return trial.stdout.strip()
