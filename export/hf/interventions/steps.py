"""Steps of generation whose activations a request may change.

The cached keys and values of a changed step are those of its changed activations, so that the steps after it are exact,
too. A site is verified over the chunks of a prompt and single tokens, each with its part of a change of the whole text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnxruntime import InferenceSession
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from export.graphs.graph import part_of
from export.hf.generation.graphs import DECODE, ENCODER, OUTPUT, Generation
from export.hf.generation.verification import Steps, joined_outputs, source_of, tokens_of
from export.hf.verification.float64 import Original
from export.interventions.graph import ADD, RENORMALIZE, input_name, kinds_of, with_interventions
from export.interventions.sites import Site, find_sites
from export.interventions.traced import trace
from export.interventions.verification import changed, difference, drawn, of_layer
from export.verification.sessions import Arrays, run_outputs, session
from models.block import Block

SUFFIX = "_interventions"  # of the file names of graphs with interventions, after those of generation
SIZES = {"batch": 2, "m": 3, "n": 4, "n + m": 7, "1 + n": 5, "s": 6}
CHUNKS = (4, 1, 1, 1)  # tokens in each run


@dataclass(frozen=True)
class StepGraphs:
    """The graphs by file name, the sites of steps, and why other sites are left out."""

    graphs: dict[str, onnx.ModelProto]
    sites: list[str]
    left_out: dict[str, str]


def step_graphs(
    generation: Generation,
    sites: Sequence[Site],
    plain: InferenceSession,
    block: Block,
    original: Original,
    folder: Path,
) -> StepGraphs:
    """The graphs of ``generation`` with inputs that change ``sites``, which are those of the canonical graph.

    ``plain`` returns that graph's activations by their names; ``folder`` has the weights.
    """
    found = {name: _sites(graph, folder) for name, graph in generation.exact.items()}
    of_model = {site.name: site for site in sites}
    places = {site.name: name for name, several in found.items() for site in several if site.name in of_model}
    failed = dict.fromkeys(of_model.keys() - places.keys(), "its activations are not found in the graph of a step")

    def chosen(name: str) -> list[Site]:
        return [site for site in found[name] if site.name in places and site.name not in failed]

    runs = {
        name: session(with_interventions(graph, chosen(name), False).SerializeToString(), folder, prepack=False)
        for name, graph in generation.exact.items()
    }
    steps = Steps(runs[DECODE], runs.get(ENCODER), [(heads, width) for heads, width in generation.entry["past"]])
    for index, name in enumerate(places):
        try:
            reason = _failure(of_model[name], index, steps, plain, block, original)
        except (Fail, InvalidArgument):
            reason = "its activations have another shape in a step"
        if reason is not None:
            failed[name] = reason
    verified = [site.name for site in sites if site.name not in failed]
    graphs = {}
    for name in runs if verified else ():
        whole = graphs[f"{name}{SUFFIX}"] = with_interventions(generation.graphs[name], chosen(name), False)
        if name == DECODE:
            outputs = [value.name for value in generation.graphs[OUTPUT].graph.output]
            graphs[f"{OUTPUT}{SUFFIX}"] = part_of(whole, [value.name for value in whole.graph.input], outputs)
    return StepGraphs(graphs, verified, failed)


def _sites(model: onnx.ModelProto, folder: Path) -> list[Site]:
    traced = trace(model, folder, _example)
    return [*find_sites(traced.graph, traced.shapes)]


def _example(run: InferenceSession) -> dict[str, np.ndarray]:
    """Inputs of a step, or of the encoder, whose numbers do not matter."""
    rng = np.random.default_rng(0)
    example: dict[str, np.ndarray] = {}
    for value in run.get_inputs():
        shape = [SIZES[dim] if isinstance(dim, str) else dim for dim in value.shape]
        is_float = value.type == "tensor(float)"
        example[value.name] = rng.standard_normal(shape, np.float32) if is_float else np.ones(shape, np.int64)
    return example


def _failure(
    site: Site, seed: int, steps: Steps, plain: InferenceSession, block: Block, original: Original
) -> str | None:
    """Why a change of a random layer differs from that in transformers; None if it does not."""
    rng = np.random.default_rng(seed)
    inputs = source_of(block, rng) if steps.encoder else {}
    ids = tokens_of(block, original, sum(CHUNKS), rng)
    whole = {**inputs, steps.ids: ids}
    layer = int(rng.integers(len(site.values)))
    activation = run_outputs(plain, [site.values[layer]], whole)[site.values[layer]]
    change = {kind: drawn(kind, activation, rng) for kind in kinds_of(site.name)}
    if site.name == "weights":
        change[ADD] = np.tril(change[ADD])  # a step has no later keys
    own = {input_name(site.name, kind): of_layer(array, kind, layer, site) for kind, array in change.items()}
    answers = []
    for dtype in (np.float32, np.float64):
        with changed(activation, change) as count:
            answers.append(original(whole, dtype))
        if not count:
            return "no tensor of transformers equals it"
    of_encoder = site.name.startswith("encoder_")
    source = steps.source({**inputs, **own} if of_encoder else inputs)
    ends = np.cumsum(CHUNKS)
    runs = steps.run(
        [ids[:, start:end] for start, end in pairwise([0, *ends.tolist()])],
        np.ones_like(ids), source, 0, lambda *ends: {} if of_encoder else _part(own, site.name, *ends),
    )  # fmt: skip
    actual = joined_outputs(runs, 0, 0)
    names = actual.keys() & answers[0].keys()
    rounded, exact = ({name: _of_row(one[name], name, ends) for name in names} for one in answers)
    return difference(actual, rounded, exact)


def _of_row(array: np.ndarray, name: str, ends: np.ndarray) -> np.ndarray:
    """The first row of an output of the whole text; for ``output``, the last position of each run."""
    return array[0, ends - 1] if name == "output" else array[:, 0] if array.ndim > 2 else array


def _part(own: Mapping[str, np.ndarray], site: str, start: int, end: int) -> Arrays:
    """The part of a change between two positions; for weights, only those of the keys so far."""
    keys = slice(end) if site == "weights" else slice(None)
    return {
        name: np.ascontiguousarray(array[..., start:end, slice(None) if name.endswith(RENORMALIZE) else keys])
        for name, array in own.items()
    }
