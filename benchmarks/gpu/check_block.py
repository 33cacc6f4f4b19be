"""Every graph of a block on the provider, against the float64 reference: one block in one dtype, in this process."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.opened import graph_name, opened
from benchmarks.gpu.worker import answer, told
from export.artifact import LARGE
from export.verification import CANONICAL, Check, Sessions, checks
from models.catalogue import find
from models.precision import in_precision, name_in
from service.model import Model
from service.placement import heavy_on_cpu, written

LISTED = 10
FINER = 2.0**-12  # of TF32's ten bits nothing of 1 + FINER is left


def main() -> None:
    asked = told()
    torch.set_num_threads(1)  # other blocks are checked beside
    answer(**check(asked["block"], asked["dtype"], asked["short"], Path(asked["repository"]), asked["provider"]))


def check(name: str, dtype: str, short: bool, repository: Path, provider: str) -> dict[str, Any]:
    """How many checks, how many of them were wrong, and the worst: its error over what it may be."""
    block = find(name)
    if dtype != "float32":
        block = in_precision(block, dtype)
    module = block.build()
    model = opened(repository, name_in(name, dtype), provider)
    graphs = sorted(model.graphs, key=lambda graph: graph.card is not None)  # the canonical one is the first
    sessions = {graph_name(graph): graph.session for graph in graphs}
    fixed: Mapping[str, Any] = {graph_name(graph): graph.card.fixes for graph in graphs if graph.card}
    large = sum(parameter.numel() for parameter in module.parameters()) > LARGE
    every = checks(block, module, sessions, fixed, large or short)
    found = [each for each in every if each.graph.partition(" ")[0] in sessions]  # not those of torch on the CPU
    if name == "dot_product" and dtype == "float32":
        found += full_precision(sessions)
    found.sort(key=_of_budget, reverse=True)
    wrong = [str(each) for each in found if not each.ok] + (elsewhere(model, sessions) if provider == "cuda" else [])
    return {
        "checks": len(found),
        "nodes": {graph: written(model.placement[graph]) for graph in sessions},
        "worst": min(_of_budget(found[0]), 1e9),  # JSON has no infinity
        "where": str(found[0]),
        "wrong": wrong[:LISTED],
        "wrong_count": len(wrong),
    }


def elsewhere(model: Model, graphs: Iterable[str]) -> list[str]:
    """The products, softmaxes and attentions of these graphs that run on the CPU."""
    left = {graph: heavy_on_cpu(model.placement[graph]) for graph in graphs}
    return [f"{graph}: {nodes} {of} on the CPU" for graph, every in left.items() for of, nodes in every.items()]


def full_precision(sessions: Sessions) -> Iterator[Check]:
    """float32 is float32: products with a diagonal lose not one bit, which TF32 does not keep."""
    query = np.full((1, 1, 64, 64), 1 + FINER, np.float32)
    key = np.eye(64, dtype=np.float32)[None, None]
    (scores,) = sessions[CANONICAL].run(["scores"], {"query": query, "key": key, "value": key})
    yield Check(CANONICAL, "full precision", "scores", float(np.abs(scores - query).max()), 0.0)


def _of_budget(each: Check) -> float:
    if each.budget:
        return each.error / each.budget
    return 0.0 if each.ok else np.inf


if __name__ == "__main__":
    main()
