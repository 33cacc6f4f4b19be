"""Runs of a block before it is served, to learn the cost of each graph and whether its rows can be stacked.

Requests are stacked only on graphs that here computed every row of a joined run as they compute it alone, bit for bit.
Not all do: a sum over an axis whose size is no multiple of the vector's width may be taken in another order.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np

from service.base.errors import HeedError
from service.model.checks import TOKENS
from service.model.estimate import run_size
from service.model.graph import Arrays, Graph
from service.model.model import Model
from service.model.spec import BlockSpec
from service.tensors.bfloat16 import astype
from service.tensors.dims import Sizes, dim_size, symbol

log = logging.getLogger("heed")

STACKED = 5  # requests in the joined run
# Sizes of the dimensions other than batch, taken in turn; odd, so that no vector register is full.
LENGTHS = ((1, 7, 3), (5, 7, 3), (9, 13, 5))
LARGE_LENGTH, LARGE_ROWS = 512, 8  # queries and keys, and rows, of a run that keeps a GPU busy
GROWING_LENGTHS, WIDTH = (64, 128, 256, 512, 1024, 2048), 64  # queries and keys of the CPU's further runs, their width
REPEATS = 2  # of each of these; the faster one counts: the first has its memory to map, and a disturbance slows it down
LONG_RUN_NS, LONGEST_RUN_NS = 1_000_000, 100_000_000  # of the second run on one graph, and of any: none is longer


def calibrate(model: Model) -> dict[Graph, bool]:
    """The graphs of a block that work, and whether requests can be stacked on each; the costs of all are learned.

    A fast path that fails is left out, with a warning.

    Raises:
        Exception: the canonical graph failed.
    """
    assert model.spec is not None, "only a block says which inputs can be drawn"
    drawn = [[_draw(model, model.spec, lengths, seed) for seed in range(STACKED)] for lengths in LENGTHS]
    large = _draw_square(model, model.spec, LARGE_LENGTH, LARGE_ROWS) if model.is_on_cuda else None

    def is_stackable(graph: Graph) -> bool:
        model.run(graph, drawn[0][0], sorted(graph.outputs))  # the first run takes longer, and is not timed
        if large:
            names = ["output" if "output" in graph.outputs else min(graph.outputs)]
            model.run(graph, large, names)  # the first run of a shape also chooses kernels
            _timed(model, graph, large, names)
        return all(_is_exact(model, graph, requests) for requests in drawn)

    results: dict[Graph, bool] = {}
    for graph in model.graphs:
        try:
            results[graph] = is_stackable(graph)
        except Exception as error:
            if graph.spec is None or isinstance(error, (HeedError, MemoryError)):
                raise
            log.warning("model %s: %s is not used, because it cannot run: %s", model.name, graph.spec.fast_path, error)
    if not model.is_on_cuda:
        _time_growing(replace(model, graphs=list(results)), model.spec)
    return results


def _is_exact(model: Model, graph: Graph, requests: Sequence[Arrays]) -> bool:
    names = [name for name in model.outputs if name in graph.outputs]
    alone = [_timed(model, graph, inputs, names) for inputs in requests]
    tensors = (*(model.outputs[name] for name in names), *(model.inputs[name] for name in requests[0]))
    if any("batch" not in map(symbol, tensor.shape) for tensor in tensors):
        return False
    stacked = {name: np.concatenate([inputs[name] for inputs in requests]) for name in requests[0]}
    joined = _timed(model, graph, stacked, names)
    for name in names:
        axis = [symbol(dim) for dim in model.outputs[name].shape].index("batch")
        rows = np.split(joined[name], STACKED, axis)
        if any(row.tobytes() != outputs[name].tobytes() for row, outputs in zip(rows, alone, strict=True)):
            return False
    return True


def _timed(model: Model, graph: Graph, inputs: Arrays, names: Sequence[str]) -> dict[str, np.ndarray]:
    sizes = model.bind(inputs)
    outputs, elapsed_ns = _run(model, graph, inputs, names)
    graph.cost.learn(run_size(model.signature, inputs, sizes), elapsed_ns)
    return outputs


def _run(model: Model, graph: Graph, inputs: Arrays, names: Sequence[str]) -> tuple[dict[str, np.ndarray], int]:
    """The outputs of a run, and its nanoseconds."""
    start = model.clock()
    outputs = model.run(graph, inputs, names)
    return outputs, model.clock() - start


def _time_growing(model: Model, spec: BlockSpec) -> None:
    """Time runs of growing length, until one takes a millisecond and is the second on the graph of all longer ones,
    or takes 100 milliseconds.

    Extrapolated from short runs alone, a long one would seem to take up to 700 times its time. Other graphs are
    expected to take as long as the last two of these.
    """
    growing: dict[tuple[str, ...], Graph | None] = {("output",): None, ("output", "weights"): None}
    timed: dict[tuple[str, ...], list[tuple[Graph, int, int]]] = {outputs: [] for outputs in growing}
    for length in GROWING_LENGTHS:
        inputs = _draw_square(model, spec, length)
        sizes = model.bind(inputs)
        for outputs, before in tuple(growing.items()):
            graph, size = model.graph_for(inputs, outputs, sizes), run_size(model.signature, inputs, sizes)
            elapsed_ns = min(_run(model, graph, inputs, outputs)[1] for _ in range(REPEATS))
            graph.cost.learn(size, elapsed_ns)
            timed[outputs].append((graph, size, elapsed_ns))
            growing[outputs] = graph
            of_longest = next(
                graph for graph in model.graphs if graph.can_serve(inputs, outputs, sys.maxsize, sys.maxsize)
            )
            if elapsed_ns > (LONG_RUN_NS if graph is before is of_longest else LONGEST_RUN_NS):
                del growing[outputs]
        if not growing:
            break
    for graph in model.graphs:
        runs = timed["output", "weights"] if "weights" in graph.outputs else timed["output",]
        for longest, size, elapsed_ns in runs[-2:]:
            if graph is not longest:
                graph.cost.learn(size, elapsed_ns)


def _draw_square(model: Model, spec: BlockSpec, length: int, batch: int = 1) -> dict[str, np.ndarray]:
    """The inputs of a run with ``length`` queries and keys.

    On a GPU, small runs cost their kernel launches. Extrapolated, a large run would seem to take hours and requests
    behind it would be rejected, so one large run is timed too.
    """
    lengths = [term for dim in model.outputs["weights"].shape[-2:] for term in symbol(dim).split(" + ")]
    widths = dict.fromkeys(symbol(spec.depth).split(" + "), WIDTH)
    return _draw(model, spec, (1,), 0, widths | dict.fromkeys(lengths, length) | {"batch": batch})


def _draw(
    model: Model, spec: BlockSpec, lengths: tuple[int, ...], seed: int, others: Sizes | None = None
) -> dict[str, np.ndarray]:
    """Random numbers in their ranges for each required input, of one row or of the sizes in ``others``."""
    required = {name: tensor for name, tensor in model.inputs.items() if tensor.required}
    sizes = _sizes(
        sorted({symbol(dim) for tensor in required.values() for dim in tensor.shape}), spec, lengths, others or {}
    )
    rng = np.random.default_rng([seed, crc32(model.name.encode())])
    drawn = {}
    for name, tensor in required.items():
        shape = [dim_size(dim, sizes) for dim in tensor.shape]
        if tensor.dtype.kind == "i":
            minimum, maximum = spec.inputs[name].minimum or 0, spec.inputs[name].maximum or 0
            drawn[name] = rng.integers(int(minimum), dim_size(maximum, sizes) + 1, shape, tensor.dtype)
        else:
            drawn[name] = astype(rng.standard_normal(shape), tensor.dtype)
    for placeholder in model.signature.placeholders.values():  # there are no rows for which its token would stand
        drawn[TOKENS][drawn[TOKENS] == placeholder.token] -= 1 if placeholder.token else -1
    return drawn


def _sizes(symbols: list[str], spec: BlockSpec, lengths: tuple[int, ...], others: Sizes) -> Sizes:
    names = [name for name in symbols if name != "batch" and not name.isdecimal()]
    sizes: Sizes = {name: lengths[index % len(lengths)] for index, name in enumerate(names)} | {"batch": 1}
    sizes |= {name: size for name, size in others.items() if name in sizes}
    for many, few in spec.multiples.items():
        sizes[many] = sizes[few]
    for dim, limit in spec.limits.items():
        for term in dim.split(" + "):
            if term in sizes:
                sizes[term] = min(sizes[term], limit)
    return sizes
