"""Checks of all graphs of a block in one dtype on the provider against the float64 reference, in this process."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.opened import graph_name, open_model
from benchmarks.gpu.worker import send_result, worker_request
from export.verification import CANONICAL, Check, Sessions, checks
from models.catalogue import find
from models.learned import LARGE
from models.precision import in_precision, name_in
from service.model.model import Model
from service.ort.placement import format_placement, heavy_on_cpu

MAX_LISTED = 10
BELOW_TF32 = 2.0**-12  # TF32 has ten fraction bits and rounds 1 + BELOW_TF32 to 1


def main() -> None:
    request = worker_request()
    torch.set_num_threads(1)  # other processes check other blocks
    repository, provider = Path(request["repository"]), request["provider"]
    send_result(**check(request["block"], request["dtype"], request["short"], repository, provider))


def check(name: str, dtype: str, short: bool, repository: Path, provider: str) -> dict[str, Any]:
    """The number of checks, the wrong ones, and the largest error / allowed error."""
    block = find(name)
    if dtype != "float32":
        block = in_precision(block, dtype)
    module = block.build()
    model = open_model(repository, name_in(name, dtype), provider)
    graphs = sorted(model.graphs, key=lambda graph: graph.spec is not None)  # the canonical graph first
    sessions = {graph_name(graph): graph.session.onnx for graph in graphs}
    fixed: Mapping[str, Any] = {graph_name(graph): graph.spec.fixes for graph in graphs if graph.spec}
    large = sum(parameter.numel() for parameter in module.parameters()) > LARGE
    all_checks = checks(block, module, sessions, fixed, large or short)
    results = [check for check in all_checks if check.graph.partition(" ")[0] in sessions]  # without torch's on the CPU
    if name == "dot_product" and dtype == "float32":
        results += full_precision(sessions)
    results.sort(key=_budget_share, reverse=True)
    wrong = [str(check) for check in results if not check.ok]
    wrong += nodes_on_cpu(model, sessions) if provider == "cuda" else []
    return {
        "checks": len(results),
        "nodes": {graph: format_placement(model.placement[graph]) for graph in sessions},
        "worst": min(_budget_share(results[0]), 1e9),  # JSON has no infinity
        "where": str(results[0]),
        "wrong": wrong[:MAX_LISTED],
        "wrong_count": len(wrong),
    }


def nodes_on_cpu(model: Model, graphs: Iterable[str]) -> list[str]:
    """The products, softmaxes and attentions of these graphs that run on the CPU."""
    counts = {graph: heavy_on_cpu(model.placement[graph]) for graph in graphs}
    return [f"{graph}: {n} {op} on the CPU" for graph, ops in counts.items() for op, n in ops.items()]


def full_precision(sessions: Sessions) -> Iterator[Check]:
    """Check for TF32 instead of float32: products with a unit matrix must be exact, which TF32 rounds."""
    query = np.full((1, 1, 64, 64), 1 + BELOW_TF32, np.float32)
    key = np.eye(64, dtype=np.float32)[None, None]
    (scores,) = sessions[CANONICAL].run(["scores"], {"query": query, "key": key, "value": key})
    yield Check(CANONICAL, "full precision", "scores", float(np.abs(scores - query).max()), 0.0)


def _budget_share(check: Check) -> float:
    if check.budget:
        return check.error / check.budget
    return 0.0 if check.ok else np.inf


if __name__ == "__main__":
    main()
