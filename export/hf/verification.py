"""Compare the graphs of a model with the model in transformers, in float64.

The budget of an output is twice the error of transformers' own eager float32 on the same inputs, plus one unit in the
last place of the output's largest number. A rounding error is random: for a graph that exceeds the budget, it is the
largest of many draws, in which embeddings are changed by up to a thousandth (``Original``).
"""

from collections.abc import Iterator, Mapping

import numpy as np
from onnxruntime import InferenceSession

from export.hf.examples import SIZES, examples
from export.hf.float64 import Original
from export.verification import CANONICAL, Arrays, Check, Sessions, input_names, largest_error, run_outputs
from models.block import Block, Sizes

EPS = np.finfo(np.float32).eps
MORE_DRAWS = 64
MIN_MORE_DRAWS, PRODUCTS = 4, 300_000_000  # of a large model: so many as have that many learned numbers together
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


def checks(
    block: Block, original: Original, sessions: Sessions, every: Mapping[str, Sizes], learned: int
) -> Iterator[Check]:
    """Run every graph on every example with inputs it has, and compare each of its outputs with ``original``.

    Yields:
        A check for each output; for graphs other than the canonical one, also one for their difference from it.
    """
    draws = min(MORE_DRAWS, max(MIN_MORE_DRAWS, PRODUCTS // max(learned, 1)))
    for example, inputs in examples(block.inputs, every, block.limits):
        exact, plain = original(inputs, np.float64), original(inputs, np.float32)
        budgets = {name: _budget(plain[name], exact[name]) for name in exact}
        able = {graph: run for graph, run in sessions.items() if inputs.keys() <= input_names(run)}
        outputs = {graph: _outputs(run, inputs) for graph, run in able.items()}
        errors = {
            (graph, name): largest_error(array, exact[name])
            for graph, computed in outputs.items()
            for name, array in computed.items()
        }
        if any(error > budgets[name] for (_, name), error in errors.items()):
            for draw in range(1, draws + 1):  # a rare rounding error, or a wrong graph?
                other, plain = original(inputs, np.float64, draw), original(inputs, np.float32, draw)
                budgets = {name: max(budgets[name], _budget(plain[name], other[name])) for name in budgets}
        for (graph, name), error in errors.items():
            yield Check(graph, example, name, error, budgets[name])
            if graph != CANONICAL:  # each within its budget, so at most both budgets apart
                beside = largest_error(outputs[graph][name], outputs[CANONICAL][name])
                yield Check(f"{graph} beside {CANONICAL}", example, name, beside, 2 * budgets[name])


def _budget(plain: np.ndarray, exact: np.ndarray) -> float:
    return float(2 * largest_error(plain, exact) + EPS * np.abs(exact).max(initial=0.0))


def _outputs(run: InferenceSession, inputs: Arrays) -> dict[str, np.ndarray]:
    return run_outputs(run, [output.name for output in run.get_outputs()], inputs)
