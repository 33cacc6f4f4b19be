"""Compare the graphs of a model with the model in transformers, in float64.

The budget of an output is twice the error of transformers' own eager float32 on the same inputs, plus one unit in the
last place of the output's largest number. A graph that exceeds it is compared on more draws of inputs of the same
shapes, as the error of a few numbers is random: then the largest budget of all draws counts.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from onnxruntime import InferenceSession

from export.hf.examples import SIZES, examples
from export.verification import CANONICAL, Arrays, Check, Sessions, input_names, largest_error, run_outputs
from models.block import Block, Sizes

EPS = np.finfo(np.float32).eps
MORE_DRAWS = 16
FEW = ("one", "distinct")  # sizes of a model whose reference is slow
SLOW = 200_000_000  # learned numbers
MAX_SCORES = 1 << 26  # of the example of the largest length, in all layers
MAX_PRODUCTS = 100_000_000_000


def sizes_of(block: Block, learned: int) -> dict[str, Sizes]:
    """The sizes to verify at, by name; the largest lengths among them, unless that would take minutes."""
    chosen = {name: SIZES[name] for name in SIZES if learned <= SLOW or name in FEW}
    if not block.limits:
        return chosen
    largest = {"batch": 1, **{symbol: block.limits.get(symbol, SIZES["long"][symbol]) for symbol in ("n", "m")}}
    layers, _, heads, queries, keys = block.outputs["weights"].shape
    ends = [largest.get(str(dim), dim) for dim in (queries, keys)]
    pairs = int(np.prod([dim if isinstance(dim, int) else max(largest.values()) for dim in (layers, heads, *ends)]))
    if pairs <= MAX_SCORES and max(largest.values()) * learned <= MAX_PRODUCTS:
        chosen["limit"] = largest
    return chosen


def checks(block: Block, sessions: Sessions, every: Mapping[str, Sizes]) -> Iterator[Check]:
    """Run every graph on every example, and compare each of its outputs with the reference.

    Yields:
        A check for each output; for graphs other than the canonical one, also one for their difference from it.
    """
    module = block.build()

    def budgets_of(inputs: Arrays) -> tuple[Arrays, dict[str, float]]:
        exact, plain = block.reference(module, inputs, np.float64), block.reference(module, inputs, np.float32)
        return exact, {name: _budget(plain[name], exact[name]) for name in exact}

    for name, drawn in examples(block.inputs, every, block.limits, 1 + MORE_DRAWS):
        exact, budgets = budgets_of(drawn[0])
        outputs = {graph: _outputs(run, drawn[0]) for graph, run in sessions.items()}
        if any(_exceeds(computed, exact, budgets) for computed in outputs.values()):
            others = [budgets_of(inputs)[1] for inputs in drawn[1:]]
            budgets = {output: max(budget, *(other[output] for other in others)) for output, budget in budgets.items()}
        for graph, computed in outputs.items():
            for output, array in computed.items():
                yield Check(graph, name, output, largest_error(array, exact[output]), budgets[output])
                if graph != CANONICAL:  # each within its budget, so at most both budgets apart
                    error = largest_error(array, outputs[CANONICAL][output])
                    yield Check(f"{graph} beside {CANONICAL}", name, output, error, 2 * budgets[output])


def _outputs(run: InferenceSession, inputs: Arrays) -> dict[str, np.ndarray]:
    names = [output.name for output in run.get_outputs()]
    known = {name: array for name, array in inputs.items() if name in input_names(run)}
    return run_outputs(run, names, known)


def _exceeds(outputs: Arrays, exact: Arrays, budgets: Mapping[str, float]) -> bool:
    return any(largest_error(array, exact[name]) > budgets[name] for name, array in outputs.items())


def _budget(plain: np.ndarray, exact: np.ndarray) -> float:
    return float(2 * largest_error(plain, exact) + EPS * np.abs(exact).max(initial=0.0))
