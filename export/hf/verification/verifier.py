"""Compare the graphs of a model with the model in transformers, in float64.

The budget of an output is twice the error of transformers' own eager float32 on the same inputs, plus one unit in the
last place of the output's largest number. A rounding error is random: for a graph that exceeds the budget, it is the
largest of many draws, in which embeddings are changed by up to a thousandth (``Original``). No budget is more than a
thousandth of the output's largest number: a model that transformers computes less exactly cannot be verified.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnxruntime import InferenceSession

from export.hf.pretrained import ModelRefused
from export.hf.verification.examples import SIZES, examples, with_room
from export.hf.verification.float64 import Original
from export.hf.wrapper import BESIDE, TWO_TOWERS
from export.verification.budget import MAX_SHARE, budget_of, largest_error
from export.verification.checks import CANONICAL, Check
from export.verification.sessions import Arrays, input_names, run_outputs
from models.block import Block, Sizes

Report = Callable[[str], None]  # called with each step
ANSWERS = ("output", "embedding", *BESIDE, *TWO_TOWERS.answers)  # the outputs that every graph has
MORE_DRAWS = 64
MIN_MORE_DRAWS, PRODUCTS = 4, 300_000_000  # draws of a large model: PRODUCTS / learned numbers
FEW = ("one", "distinct")  # sizes of a model whose reference is slow
SLOW = 200_000_000  # learned numbers
MAX_SCORES = 1 << 26  # of the example of the largest length, in all layers
MAX_PRODUCTS = 100_000_000_000


def sizes_of(block: Block, learned: int) -> dict[str, Sizes]:
    """The sizes to verify at, by name; the largest lengths among them, unless that would take minutes."""
    chosen = {name: with_room(SIZES[name], block.inputs) for name in SIZES if learned <= SLOW or name in FEW}
    if any(spec.placeholder for spec in block.inputs.values()):
        chosen["text"] = {**SIZES["distinct"], "images": 0}
    if not block.limits:
        return chosen
    largest = {
        "batch": 1,
        "images": 1,
        **{symbol: block.limits.get(symbol, SIZES["long"][symbol]) for symbol in ("n", "m")},
    }
    layers, _, heads, queries, keys = block.outputs["weights"].shape
    ends = [largest.get(str(dim), dim) for dim in (queries, keys)]
    pairs = int(np.prod([dim if isinstance(dim, int) else max(largest.values()) for dim in (layers, heads, *ends)]))
    if pairs <= MAX_SCORES and max(largest.values()) * learned <= MAX_PRODUCTS:
        chosen["limit"] = largest
    return chosen


@dataclass
class Example:
    """One example: its inputs, the model's outputs, and the budgets of their errors."""

    name: str
    inputs: Arrays
    exact: dict[str, np.ndarray]
    budgets: dict[str, float]
    canonical: dict[str, np.ndarray] = field(default_factory=dict)  # outputs of the canonical graph
    draws: int = 0  # of changed embeddings, which the budgets include

    def keep(self, outputs: Collection[str]) -> None:
        """Forget all but these outputs."""
        self.exact = {name: self.exact[name] for name in outputs}
        self.canonical = {name: self.canonical[name] for name in outputs}


class Verifier:
    """Runs graphs on examples, one graph after the other: the canonical one is first."""

    def __init__(self, block: Block, original: Original, learned: int, report: Report) -> None:
        self._original, self._inputs = original, block.inputs
        self._report = report
        self._draws = min(MORE_DRAWS, max(MIN_MORE_DRAWS, PRODUCTS // max(learned, 1)))
        self._named = examples(block.inputs, sizes_of(block, learned), block.limits)
        self._examples: list[Example] = []

    def complete(self, runs: Mapping[str, InferenceSession]) -> list[Check]:
        """A check for each output of each example by each of the graphs ``runs``, the first of which has all inputs.

        Raises:
            ModelRefused: transformers in float32 is too far from itself in float64 to compare a graph with it.
        """
        checks = []
        for name, inputs in self._named:
            self._report(f"verifying {CANONICAL}.onnx: {name}")
            exact, plain = self._original(inputs, np.float64), self._original(inputs, np.float32)
            _refuse_inexact(name, plain, exact)
            example = Example(
                name, inputs, exact, {output: budget_of(plain[output], exact[output]) for output in exact}
            )
            for graph, run in runs.items():
                if inputs.keys() <= input_names(run):
                    outputs = self._outputs(run, example)
                    example.canonical = example.canonical or outputs
                    checks += _checks(graph, example, outputs)
            example.keep([output for output in ANSWERS if output in exact])
            self._examples.append(example)
        return checks

    def fast_path(self, name: str, run: InferenceSession) -> list[Check]:
        """A check for each output of each example whose inputs the graph has, and one for its difference from the
        canonical graph's."""
        checks = []
        for example in self._examples:
            missing = example.inputs.keys() - input_names(run)
            if all(self._inputs[other].only_for for other in missing):  # those of the other tower
                self._report(f"verifying {name}.onnx: {example.name}")
                checks += _checks(name, example, self._outputs(run, example))
        return checks

    def _outputs(self, run: InferenceSession, example: Example) -> dict[str, np.ndarray]:
        """The outputs of a graph. While one exceeds its budget, more budgets are drawn, up to a limit.

        Raises:
            ModelRefused: ONNX Runtime cannot run the graph.
        """
        try:
            given = {name: example.inputs[name] for name in input_names(run) & example.inputs.keys()}
            outputs = run_outputs(run, [output.name for output in run.get_outputs()], given)
        except Exception as error:  # of ONNX Runtime's own types, which have no common base
            reason = str(error).strip().splitlines()[0]
            raise ModelRefused(f"ONNX Runtime cannot run its graph ({example.name}): {reason}") from None
        errors = {name: largest_error(array, example.exact[name]) for name, array in outputs.items()}
        # A rare rounding error, or a wrong graph?
        while example.draws < self._draws and any(errors[name] > example.budgets[name] for name in errors):
            example.draws += 1
            exact, plain = (self._original(example.inputs, dtype, example.draws) for dtype in (np.float64, np.float32))
            drawn = {name: budget_of(plain[name], exact[name]) for name in example.budgets}
            example.budgets = {name: max(budget, drawn[name]) for name, budget in example.budgets.items()}
        return outputs


def _checks(graph: str, example: Example, outputs: Arrays) -> list[Check]:
    """A check of each output and, of graphs other than the canonical one, of its difference from that graph's."""
    checks = []
    for name, array in outputs.items():
        budget = example.budgets[name]
        checks.append(Check(graph, example.name, name, largest_error(array, example.exact[name]), budget))
        if graph != CANONICAL:  # each within its budget
            error = largest_error(array, example.canonical[name])
            checks.append(Check(f"{graph} beside {CANONICAL}", example.name, name, error, 2 * budget))
    return checks


def _refuse_inexact(example: str, plain: Arrays, exact: Arrays) -> None:
    for name in exact:
        error, largest = largest_error(plain[name], exact[name]), float(np.abs(exact[name]).max(initial=0.0))
        if 2 * error > MAX_SHARE * largest:
            by = f"{error / largest:.2g} of its largest number" if np.isfinite(error) else "numbers that are not finite"
            raise ModelRefused(
                f"in transformers, {name} in float32 differs from {name} in float64 by {by} ({example}), so that no "
                "graph can be compared with it"
            )
