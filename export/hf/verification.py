"""Compare the graphs of a model with the model in transformers, in float64.

The budget of an output is twice the error of transformers' own eager float32 on the same inputs, plus one unit in the
last place of the output's largest number. The error of a few numbers is random, so a graph that exceeds it is compared
on more draws of inputs of the same shapes: its largest error with the largest budget.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from onnxruntime import InferenceSession

from export.hf.examples import SIZES, examples
from export.verification import CANONICAL, Arrays, Check, Sessions, input_names, largest_error, run_outputs
from models.block import Block, Sizes

EPS = np.finfo(np.float32).eps
MORE_DRAWS = 64
MIN_MORE_DRAWS, PRODUCTS = 4, 300_000_000  # of a large model: so many as have that many learned numbers together
FEW = ("one", "distinct")  # sizes of a model whose reference is slow
SLOW = 200_000_000  # learned numbers
MAX_SCORES = 1 << 26  # of the example of the largest length, in all layers
MAX_PRODUCTS = 100_000_000_000

_Measured = dict[tuple[str, str], tuple[float, float]]  # graph and output -> error and budget


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


def checks(block: Block, sessions: Sessions, every: Mapping[str, Sizes], learned: int) -> Iterator[Check]:
    """Run every graph on every example, and compare each of its outputs with the reference.

    Yields:
        A check for each output; for graphs other than the canonical one, also one for their difference from it.
    """
    module = block.build()
    draws = 1 + min(MORE_DRAWS, max(MIN_MORE_DRAWS, PRODUCTS // max(learned, 1)))

    def measure(inputs: Arrays) -> _Measured:
        exact, plain = block.reference(module, inputs, np.float64), block.reference(module, inputs, np.float32)
        budgets = {name: _budget(plain[name], exact[name]) for name in exact}
        able = {graph: run for graph, run in sessions.items() if inputs.keys() <= input_names(run)}
        outputs = {graph: _outputs(run, inputs) for graph, run in able.items()}
        measured: _Measured = {}
        for graph, computed in outputs.items():
            for name, array in computed.items():
                measured[graph, name] = largest_error(array, exact[name]), budgets[name]
                if graph != CANONICAL:  # each within its budget, so at most both budgets apart
                    error = largest_error(array, outputs[CANONICAL][name])
                    measured[f"{graph} beside {CANONICAL}", name] = error, 2 * budgets[name]
        return measured

    for example, drawn in examples(block.inputs, every, block.limits, draws):
        measured = measure(drawn[0])
        if any(error > budget for error, budget in measured.values()):  # a rare rounding error, or a wrong graph?
            measured = _largest([measured, *map(measure, drawn[1:])])
        for (graph, output), (error, budget) in measured.items():
            yield Check(graph, example, output, error, budget)


def _largest(every: Sequence[_Measured]) -> _Measured:
    """The largest error and the largest budget of each output of each graph."""
    return {
        key: (max(measured[key][0] for measured in every), max(measured[key][1] for measured in every))
        for key in every[0]
    }


def _outputs(run: InferenceSession, inputs: Arrays) -> dict[str, np.ndarray]:
    return run_outputs(run, [output.name for output in run.get_outputs()], inputs)


def _budget(plain: np.ndarray, exact: np.ndarray) -> float:
    return float(2 * largest_error(plain, exact) + EPS * np.abs(exact).max(initial=0.0))
