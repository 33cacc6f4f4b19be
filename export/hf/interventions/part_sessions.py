"""Runs of the parts of a model, to verify them."""

from collections.abc import Mapping, Sequence

import numpy as np
from onnxruntime import InferenceSession

from export.hf.interventions.parts import END, START
from export.interventions.verification import difference
from export.verification.budget import Reference, largest_error
from export.verification.sessions import Arrays, input_names, run_outputs
from models.block import Input

ALIKE = 1e-4  # share of the largest number: a position that differs by no more does not depend on others


class PartSessions:
    """Sessions of the head and, for a model with one stack, of the ``layers`` between ``cuts``."""

    def __init__(self, cuts: Sequence[str], head: InferenceSession, layers: Sequence[InferenceSession] = ()) -> None:
        self._cuts, self._layers, self._head = cuts, layers, head

    def hidden(self, plain: InferenceSession, layer: int, inputs: Arrays) -> np.ndarray:
        """The values before ``layer``, -1 = after the last one; ``plain`` returns them by name."""
        return run_outputs(plain, [self._cuts[layer]], inputs)[self._cuts[layer]]

    def changed(self, plain: InferenceSession, layer: int, inputs: Arrays, change: Arrays) -> dict[str, np.ndarray]:
        """The answers of a run that begins before ``layer``, and changes that layer by the inputs ``change``."""
        hidden, change = self.hidden(plain, layer, inputs), {**change}
        for run in self._layers[layer:]:
            hidden = _run(run, hidden, {**inputs, **change})[END]
            change.clear()
        return self.head(hidden, inputs)

    def head(self, hidden: np.ndarray, inputs: Arrays) -> dict[str, np.ndarray]:
        """The answers from the values after the last layer."""
        return _run(self._head, hidden, inputs)

    def head_failure(self, plain: InferenceSession, examples: Sequence[Arrays], original: Reference) -> str | None:
        """Why the head's answers to the ``examples`` are not those of the model; None if they are."""
        for inputs in examples:
            answers = self.head(self.hidden(plain, -1, inputs), inputs)
            reason = difference(answers, original(inputs, np.float32), original(inputs, np.float64))
            if reason is not None:
                return reason
        return None

    def is_positionwise(
        self, plain: InferenceSession, inputs: Arrays, specs: Mapping[str, Input], positions: str
    ) -> bool:
        """Whether each position of the head's ``output`` depends only on itself; ``positions`` is their dimension."""
        hidden = self.hidden(plain, -1, inputs)
        whole = self.head(hidden, inputs)["output"]
        if whole.shape[:2] != hidden.shape[:2]:
            return False
        place = [hidden.shape[1] // 2]
        own = {
            name: array.take(place, specs[name].shape.index(positions)) if positions in specs[name].shape else array
            for name, array in inputs.items()
        }
        try:
            one = self.head(hidden[:, place], own)["output"]
        except Exception:  # of many types: it may need the other positions
            return False
        return largest_error(one, whole[:, place]) <= ALIKE * float(np.abs(whole).max())


def _run(run: InferenceSession, hidden: np.ndarray, inputs: Arrays) -> dict[str, np.ndarray]:
    known = input_names(run)
    own = {name: array for name, array in inputs.items() if name in known}
    return run_outputs(run, [output.name for output in run.get_outputs()], {START: hidden, **own})
