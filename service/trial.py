"""Each graph of a block tried out once it is loaded: what its runs take, and whether it can share one.

Work is stacked only on graphs that here answered every row of a joined run as they answer it alone, bit for bit. Not
all do: a sum over an axis that is no multiple of the vector's width may be taken in another order.
"""

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from service.bfloat16 import astype
from service.card import Card
from service.graph import Arrays, Graph
from service.model import Model
from service.shape import Sizes, length, symbol

MEMBERS = 5  # of the joined run
LENGTHS = ((1, 7, 3), (5, 7, 3), (9, 13, 5))  # of the symbols but batch, in turn; odd, so that no vector is full
LARGE, ROWS = 512, 8  # queries and keys, and rows, of a run that a GPU is busy with


def try_out(model: Model) -> frozenset[Graph]:
    """The graphs whose rows can be stacked; each graph's cost is learned on the way."""
    assert model.card is not None
    drawn = [[_draw(model, model.card, lengths, seed) for seed in range(MEMBERS)] for lengths in LENGTHS]
    large = _draw_large(model, model.card) if model.is_on_cuda else None
    exact = set()
    for graph in list(model.graphs):
        with model.trying(graph):
            if large:
                model.run(graph, large, ["output"])  # the first of its shape also settles on kernels
                _timed(model, graph, large, ["output"])
            if all(_is_exact(model, graph, works) for works in drawn):
                exact.add(graph)
    return frozenset(exact)


def _is_exact(model: Model, graph: Graph, works: Sequence[Arrays]) -> bool:
    names = [name for name in model.outputs if name in graph.answers]
    alone = [_timed(model, graph, work, names) for work in works]
    joined = _timed(model, graph, {name: np.concatenate([work[name] for work in works]) for name in works[0]}, names)
    for place, name in enumerate(names):
        rows = np.split(joined[place], MEMBERS, [symbol(dim) for dim in model.outputs[name].shape].index("batch"))
        if any(row.tobytes() != one[place].tobytes() for row, one in zip(rows, alone, strict=True)):
            return False
    return True


def _timed(model: Model, graph: Graph, inputs: Arrays, names: list[str]) -> list[np.ndarray]:
    sizes = model.bind(inputs)
    spent = model.clock()
    found = model.run(graph, inputs, names)
    graph.cost.learn(model.size(inputs, sizes), model.clock() - spent)
    return [found[name] for name in names]


def _draw_large(model: Model, card: Card) -> dict[str, np.ndarray]:
    """The inputs of a larger run. On a GPU small ones take what their launches take, which says nothing of others: by
    their rate a large one would take hours, and whoever waits behind it be sent away."""
    pairs = [term for dim in model.outputs["weights"].shape[-2:] for term in symbol(dim).split(" + ")]
    return _draw(model, card, LENGTHS[-1], 0, dict.fromkeys(pairs, LARGE) | {"batch": ROWS})


def _draw(
    model: Model, card: Card, lengths: tuple[int, ...], seed: int, others: Sizes | None = None
) -> dict[str, np.ndarray]:
    """Each required input, of one row or as ``others`` says, with numbers that the card allows."""
    required = {name: of for name, of in model.inputs.items() if of.required}
    sizes = _sizes(sorted({symbol(dim) for of in required.values() for dim in of.shape}), card, lengths, others or {})
    rng = np.random.default_rng([seed, crc32(model.name.encode())])
    drawn = {}
    for name, of in required.items():
        shape = [length(dim, sizes) for dim in of.shape]
        if of.dtype.kind == "i":
            least, most = card.inputs[name].minimum or 0, card.inputs[name].maximum or 0
            drawn[name] = rng.integers(int(least), length(most, sizes) + 1, shape, of.dtype)
        else:
            drawn[name] = astype(rng.standard_normal(shape), of.dtype)
    return drawn


def _sizes(symbols: list[str], card: Card, lengths: tuple[int, ...], others: Sizes) -> Sizes:
    names = [name for name in symbols if name != "batch" and not name.isdecimal()]
    sizes: Sizes = {name: lengths[index % len(lengths)] for index, name in enumerate(names)} | {"batch": 1}
    sizes |= {name: size for name, size in others.items() if name in sizes}
    for many, few in card.multiples.items():
        sizes[many] = sizes[few]
    for dim, most in card.limits.items():
        for term in dim.split(" + "):
            if term in sizes:
                sizes[term] = min(sizes[term], most)
    return sizes
