"""How large an error of a graph may be: the budget of each output.

It is twice the error of plain float32 numpy on the same inputs, plus one unit in the last place of the output's largest
number. A rounding error is random, so numpy's error is the largest over several draws: copies of the inputs with random
changes of up to a thousandth (or two units in the last place). Token ids cannot change, so their embeddings do.

In float16 and bfloat16, inputs and weights are rounded first, and the error of torch's own module in that type on the
CPU takes the place of numpy's.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from export.verification.sessions import Arrays

Reference = Callable[[Arrays, Any], dict[str, np.ndarray]]
JITTER = 1e-3  # relative change of the inputs between draws
DRAWS = 6
MORE_DRAWS = 64  # before a check fails
EPS = float(np.finfo(np.float32).eps)
MAX_SHARE = 1e-3  # of an output's largest number: ``budget_of``
MANY_WEIGHTS = 30_000  # above, a DRAWS-th of the draws suffices: the largest error hardly varies


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
    are no more precise than ``dtype``, the type of the inputs. ``redrawn(k)`` is the reference of draw k, if it differs
    from ``reference``. ``exact`` is ``reference(inputs, np.float64)``, if it is known.
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
        if wide["weights"].size > MANY_WEIGHTS and DRAWS * (k + 1) >= draws:
            break
    return {name: 2 * worst[name] + eps * largest[name] for name in worst}


def budget_of(plain: np.ndarray, exact: np.ndarray) -> float:
    """The largest error allowed, given the outputs ``plain`` of the model's own module in float32."""
    largest = float(np.abs(exact[np.isfinite(exact)]).max(initial=0.0))
    return min(2 * largest_error(plain, exact) + EPS * largest, MAX_SHARE * largest)


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


def rounded(inputs: Arrays, dtype: str) -> dict[str, np.ndarray]:
    """The inputs rounded to ``dtype``, as float32; parameters and integers are unchanged."""
    return {
        name: array.astype(dtype).astype(np.float32) if array.ndim and array.dtype == np.float32 else array
        for name, array in inputs.items()
    }


def _jittered(array: np.ndarray, rng: np.random.Generator, eps: float) -> np.ndarray:
    if array.ndim == 0 or array.dtype != np.float32:
        return array
    return array * (1 + max(JITTER, 2 * eps) * rng.uniform(-1, 1, array.shape)).astype(np.float32)
