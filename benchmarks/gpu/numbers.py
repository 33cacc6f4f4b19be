"""Every graph of every block in each dtype against the float64 reference; a process for each block and dtype."""

import os
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gpu.repository import export, graph_name, open_model
from benchmarks.gpu.rows import Row, Rows, in_processes
from export.verification.checks import CANONICAL, Check, checks
from export.verification.sessions import Sessions
from models.catalogue import find
from models.learned import LARGE
from models.precision import in_precision, name_in
from service.model.model import Model
from service.ort.placement import format_placement, heavy_on_cpu

PROCESSES = min(16, os.cpu_count() or 1)
MAX_LISTED = 10
BELOW_TF32 = 2.0**-12  # TF32 has ten fraction bits and rounds 1 + BELOW_TF32 to 1


def measure(options: Namespace, rows: Rows) -> Iterator[tuple[str, Row]]:
    """Check the missing blocks, several at a time."""
    for dtype in options.dtypes:
        names = {block: f"numbers/{name_in(block, dtype)}" for block in options.blocks}
        missing = [block for block, name in names.items() if not rows.has(name)]
        location = export(options, missing, dtype), options.provider
        tasks = {(names[block],): partial(check, *location, block, dtype) for block in missing}
        yield from in_processes(PROCESSES, tasks)


def check(repository: Path, provider: str, name: str, dtype: str) -> list[Row]:
    """One row: the number of checks, the wrong ones, the largest error / allowed error. On a CPU, one draw is used."""
    block = in_precision(find(name), dtype)
    module = block.build()
    model = open_model(repository, name_in(name, dtype), provider)
    graphs = sorted(model.graphs, key=lambda graph: graph.spec is not None)  # the canonical graph first
    sessions = {graph_name(graph): graph.session.onnx for graph in graphs}
    fixed = {graph_name(graph): graph.spec.fixes for graph in graphs if graph.spec}
    large = sum(parameter.numel() for parameter in module.parameters()) > LARGE
    all_checks = checks(block, module, sessions, fixed, large or provider == "cpu")
    results = [one for one in all_checks if one.graph.partition(" ")[0] in sessions]  # without torch's on the CPU
    if name == "dot_product" and dtype == "float32":
        results.append(full_precision(sessions))
    results.sort(key=_budget_share, reverse=True)
    wrong = [str(one) for one in results if not one.ok]
    wrong += nodes_on_cpu(model) if provider == "cuda" else []
    row = {
        "dtype": dtype,
        "checks": len(results),
        "nodes": format_placement(model.placement[CANONICAL]),
        "worst": round(min(_budget_share(results[0]), 1e9), 3),  # JSON has no infinity
        "where": str(results[0]),
        "wrong": wrong[:MAX_LISTED],
        "wrong_count": len(wrong),
    }
    return [row]


def nodes_on_cpu(model: Model) -> list[str]:
    """The products, softmaxes and attentions of all graphs that run on the CPU."""
    counts = {graph: heavy_on_cpu(nodes) for graph, nodes in model.placement.items()}
    return [f"{graph}: {n} {op} on the CPU" for graph, ops in counts.items() for op, n in ops.items()]


def full_precision(sessions: Sessions) -> Check:
    """Check for TF32 instead of float32: products with a unit matrix must be exact, which TF32 rounds."""
    query = np.full((1, 1, 64, 64), 1 + BELOW_TF32, np.float32)
    key = np.eye(64, dtype=np.float32)[None, None]
    (scores,) = sessions[CANONICAL].run(["scores"], {"query": query, "key": key, "value": key})
    return Check(CANONICAL, "full precision", "scores", float(np.abs(scores - query).max()), 0.0)


def _budget_share(check: Check) -> float:
    if check.budget:
        return check.error / check.budget
    return 0.0 if check.ok else np.inf
