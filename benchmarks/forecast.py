"""How long runs take, and how long a server that has just started expects them to take.

``python -m benchmarks.forecast MODELS`` takes each block of the model repository MODELS, with its output alone and with
its weights, and runs of 64, 512 and 2,048 queries and keys on the CPU. It prints the expected time divided by the time
of the first run in one thread, on the thread's clock, and by the median of further runs in two threads, of which the
expected time knows nothing. The exit status is 1 if the first ratio of a run is below a third or above three.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.report.markdown import table
from models.catalogue import BLOCKS
from models.examples import ExampleOptions, draw
from service.model.graph import Arrays, Graph
from service.model.loader import load_version
from service.model.model import Model
from service.ort.provider import Provider

LENGTHS = (64, 512, 2048)
OUTPUTS = (("output",), ("output", "weights"))
SIZES = {"batch": 1, "heads": 8, "kv_heads": 8, "d_k": 64, "d_v": 64, "past": 0, "layers": 2}
FACTOR = 3
REPEATS = 5


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecast", description=__doc__)
    parser.add_argument("models", type=Path, help="a model repository, such as model_repository")
    folders = sorted(parser.parse_args().models.glob("*/1"))
    rows, worst = [], 1.0
    for folder in (folder for folder in folders if folder.parent.name in BLOCKS):
        model = load_version(folder, Provider("cpu", "requested"), threads=2)
        for outputs in OUTPUTS:
            ratios = list(_ratios(model, outputs))
            worst = max(worst, *(max(alone, 1 / alone) for alone, _ in ratios))
            cells = [f"{alone:.2f} / {together:.2f}" for alone, together in ratios]
            rows.append([model.name, ", ".join(outputs), *cells])
    print(*table(["block", "outputs", *(f"n = {length:,}" for length in LENGTHS)], rows), sep="\n")
    print(f"\nexpected time / time in one thread, and in two; farthest from 1, in one: {worst:.2f}")
    return int(worst > FACTOR)


def _ratios(model: Model, outputs: tuple[str, ...]) -> Iterator[tuple[float, float]]:
    for length in LENGTHS:
        inputs = draw(BLOCKS[model.name], SIZES | {"m": length, "n": length}, ExampleOptions())
        estimate = model.estimate(inputs, outputs, model.bind(inputs))
        expected = estimate.graph.cost.expected(estimate.size) / 1e9
        start = model.clock()
        model.run(estimate.graph, inputs, outputs)
        alone = (model.clock() - start) / 1e9
        graph = estimate.graph.for_size(estimate.size)
        yield expected / alone, expected / median(_seconds(model, graph, inputs, outputs) for _ in range(REPEATS))


def _seconds(model: Model, graph: Graph, inputs: Arrays, outputs: Sequence[str]) -> float:
    start = time.perf_counter()
    model.run(graph, inputs, outputs)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
