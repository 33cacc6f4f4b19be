"""How long runs take, and how long a server that has just started expects them to take.

``python -m benchmarks.forecast MODELS`` takes each block of the model repository MODELS, with its output alone and with
its weights, and runs of 64, 512 and 2,048 queries and keys on the CPU. It prints the expected time divided by the
median of five runs in one thread. The server gives long runs two threads: for these, half of the expected time divided
by the median in two follows. The exit status is 1 if a ratio is below a third or above three.
"""

import argparse
import sys
import timeit
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
            worst = max(worst, *(max(ratio, 1 / ratio) for of_length in ratios for ratio in of_length))
            cells = [" / ".join(f"{ratio:.2f}" for ratio in of_length) for of_length in ratios]
            rows.append([model.name, ", ".join(outputs), *cells])
    print(*table(["block", "outputs", *(f"n = {length:,}" for length in LENGTHS)], rows), sep="\n")
    print(f"\nexpected time / time in one thread, and in two; farthest from 1: {worst:.2f}")
    return int(worst > FACTOR)


def _ratios(model: Model, outputs: tuple[str, ...]) -> Iterator[list[float]]:
    """For each length the expected time divided by the measured one, in one thread and in more if a run gets them."""
    for length in LENGTHS:
        inputs = draw(BLOCKS[model.name], SIZES | {"m": length, "n": length}, ExampleOptions())
        estimate = model.estimate(inputs, outputs, model.bind(inputs))
        graph = estimate.graph
        expected = graph.cost.expected(estimate.size) / 1e9
        threaded = graph.for_size(estimate.size)
        ratios = [expected / _seconds(model, graph, inputs, outputs)]
        if threaded is not graph:
            ratios.append(expected / graph.threads / _seconds(model, threaded, inputs, outputs))
        yield ratios


def _seconds(model: Model, graph: Graph, inputs: Arrays, outputs: Sequence[str]) -> float:
    """The median of several runs."""
    return median(timeit.repeat(lambda: model.run(graph, inputs, outputs), number=1, repeat=REPEATS))


if __name__ == "__main__":
    sys.exit(main())
