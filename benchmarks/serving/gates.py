"""The gates: bounds on ratios of measurements."""

from collections.abc import Iterator

from benchmarks.report.gate import Gate
from benchmarks.serving.cell import Cell
from benchmarks.serving.results import Results
from benchmarks.serving.servers import IN_PROCESS
from benchmarks.serving.workloads import WORKLOADS

GATES = {  # workload -> (format, baseline) -> least ratio at 1 and at 8 connections
    "W1": {("json", IN_PROCESS): (0.6, 0.55), ("binary", "floor"): (0.75, 0.68)},
    "W2": {("json", IN_PROCESS): (1.2, 1.15), ("binary", "floor"): (0.55, 0.55), ("json", "fastapi"): (20.0, 20.0)},
    "W3": {("json", IN_PROCESS): (1.0, 0.95), ("binary", "floor"): (0.25, 0.28)},
    "W4": {("json", IN_PROCESS): (1.2, 1.15), ("binary", "floor"): (0.5, 0.48)},
}
NATIVE_TO_V2 = 0.9
P99_TO_P50 = 3.0


def gates(results: Results) -> Iterator[Gate]:
    """The gates whose measurements are in ``results``."""
    for workload, bounds in GATES.items():
        for (format, baseline), pair in bounds.items():
            for connections, bound in zip((1, 8), pair, strict=True):
                cell = Cell(workload, format, connections)
                if ratio := results.ratio("heed", cell, baseline):
                    yield Gate(f"against {baseline}", cell, ratio, bound)
    for cell in results.cells:
        if cell.ids != "none":
            continue
        if cell.format == "native" and (ratio := results.ratio("heed", cell, "heed", v2_json_cell(cell))):
            yield Gate("native against V2 JSON of the same block", cell, ratio, NATIVE_TO_V2)
        if cell.connections == 8 and (ratio := results.spread("heed", cell, "p99_ms", "p50_ms")):
            yield Gate("p99 / p50", cell, ratio, P99_TO_P50, at_most=True)


def v2_json_cell(native: Cell) -> Cell:
    """The V2 JSON cell with the same block and tensors."""
    format = "json" if WORKLOADS[native.workload].by_block else "block-json"
    return Cell(native.workload, format, native.connections)
