"""Inputs of every magnitude that float32 holds, and whether what comes of them is right, or visibly no answer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from export.verification import error_budget, largest_error
from models.block import Block
from models.catalogue import BLOCKS
from models.examples import OPTIONS, draw
from tests.support.attending import MODULES

Arrays = Mapping[str, np.ndarray]
SIZES = [
    {"layers": 2, "batch": 1, "heads": 1, "kv_heads": 1, "m": 1, "n": 2, "past": 1, "d_k": 2, "d_v": 1},
    {"layers": 2, "batch": 2, "heads": 2, "kv_heads": 1, "m": 3, "n": 4, "past": 2, "d_k": 16, "d_v": 16},
]
EXPONENT = 38  # float32 reaches from 1e-38 to 3e38
MODERATE = 4  # nothing overflows where no exponent is beyond
ULPS, NEAR = 16, 1e-5
WEIGHED = ("output", "weights", "cross_weights")  # what follows from scores
LARGEST, LEAST = (float(number) for number in (np.finfo(np.float32).max, np.finfo(np.float32).tiny))


@st.composite
def inputs_of(draw_, block: Block) -> tuple[dict[str, np.ndarray], bool]:
    """Inputs whose tensors are each of a magnitude of its own; and whether all are moderate."""
    known = {
        name: given
        for name, given in OPTIONS.items()
        if {*given.tensors, *given.parameters} <= block.inputs.keys() and not given.lengths
    }
    given = known[draw_(st.sampled_from(sorted(known)))]
    sizes = draw_(st.sampled_from(SIZES))
    inputs = draw(block, sizes, given, draw_(st.integers(0, 2**32)))
    moderate = True
    for name, of in block.inputs.items():
        if name in inputs and inputs[name].ndim and of.dtype == "float32" and not of.mask:
            exponent = draw_(st.floats(-EXPONENT, EXPONENT))
            moderate = moderate and abs(exponent) <= MODERATE
            scaled = inputs[name].astype(np.float64) * 10.0**exponent
            inputs[name] = np.clip(scaled, -LARGEST, LARGEST).astype(np.float32)
    return inputs, moderate


def is_answer(outputs: Arrays) -> bool:
    """What the native API answers; it refuses all else."""
    return all(
        np.isfinite(x).all() or (name in ("scores", "lse") and (x < np.inf).all()) for name, x in outputs.items()
    )


def wrong(name: str, inputs: Arrays, outputs: Arrays) -> dict[str, tuple[float, float]]:
    """The outputs further from the float64 reference than rounding explains: the error, and what is allowed.

    Rounding is a few units in the last place of the inputs, carried through the formula, or the error of plain float32
    numpy; a score past the largest float32 may be -inf. A score is itself rounded, by a unit in the last place, and a
    weight changes by as large a part: two keys whose projections are equal, as of the bias alone, may differ by it.
    """

    def refer(given: Arrays, dtype: Any) -> dict[str, np.ndarray]:
        with np.errstate(all="ignore"):
            return BLOCKS[name].reference(MODULES[name], given, dtype)

    exact = refer(inputs, np.float64)
    rng = np.random.default_rng(0)
    spread = dict.fromkeys(outputs, 0.0)
    for _ in range(6):
        moved = {key: _moved(x, rng) if BLOCKS[name].inputs[key].shape else x for key, x in inputs.items()}
        for output, x in refer(moved, np.float64).items():
            if output in outputs:
                spread[output] = max(spread[output], largest_error(x, exact[output]))
    with np.errstate(all="ignore"):
        budgets = error_budget(refer, inputs)
    scores = exact.get("scores", np.zeros(1))
    unit = np.finfo(np.float32).eps * np.abs(scores[np.isfinite(scores)]).max(initial=0.0)
    found = {}
    for output, x in outputs.items():
        truth = exact[output].reshape(x.shape)
        if output == "scores":
            truth = np.where(truth < -LARGEST, -np.inf, truth)
        largest = np.abs(truth[np.isfinite(truth)]).max(initial=0.0)
        budget = budgets[output] if np.isfinite(budgets[output]) else 0.0
        near = NEAR + (np.expm1(min(2 * unit, 1.0)) if output in WEIGHED else 0.0)
        allowed = max(4 * spread[output] + near * largest, budget) + 100 * LEAST
        error = largest_error(x.astype(np.float64), truth)
        if error > allowed:
            found[output] = (error, allowed)
    return found


def _moved(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if x.dtype != np.float32:
        return x
    return x * (1 + ULPS * np.finfo(np.float32).eps * rng.uniform(-1, 1, x.shape))
