"""What must hold, and whether it does."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.serving.cell import Cell
from benchmarks.serving.results import Results, Spread
from benchmarks.serving.servers import IN_PROCESS
from benchmarks.serving.workloads import WORKLOADS

REPEATS = 5  # fewer prove no gate
GATES = {  # at 1 and at 8 connections
    "W1": {("json", IN_PROCESS): (0.6, 0.55), ("binary", "floor"): (0.75, 0.68)},
    "W2": {("json", IN_PROCESS): (1.2, 1.15), ("binary", "floor"): (0.55, 0.55), ("json", "fastapi"): (20.0, 20.0)},
    "W3": {("json", IN_PROCESS): (1.0, 0.95), ("binary", "floor"): (0.25, 0.28)},
    "W4": {("json", IN_PROCESS): (1.2, 1.15), ("binary", "floor"): (0.5, 0.48)},
}
NATIVE_TO_V2 = 0.9
P99_TO_P50 = 3.0


@dataclass(frozen=True)
class Gate:
    """Something that must hold: ``ratio`` at least ``bound``, or at most."""

    what: str
    cell: Cell
    ratio: Spread
    bound: float
    at_most: bool = False

    @property
    def verdict(self) -> str:
        met = self.ratio.median <= self.bound if self.at_most else self.ratio.median >= self.bound
        few = f", of {self.ratio.count}" if self.ratio.count < REPEATS else ""
        return ("met" if met else "**not met**") + few


def gates(results: Results) -> Iterator[Gate]:
    """Those that the turns allow to judge."""
    for workload, bounds in GATES.items():
        for (face, yardstick), pair in bounds.items():
            for connections, bound in zip((1, 8), pair, strict=True):
                cell = Cell(workload, face, connections)
                if found := results.ratio("heed", cell, yardstick):
                    yield Gate(f"against {yardstick}", cell, found, bound)
    for cell in results.cells:
        if cell.ids != "none":
            continue
        if cell.face == "native" and (found := results.ratio("heed", cell, "heed", same_numbers(cell))):
            yield Gate("native against V2 JSON of the same block", cell, found, NATIVE_TO_V2)
        if cell.connections == 8 and (found := results.spread("heed", cell, "p99_ms", "p50_ms")):
            yield Gate("p99 / p50", cell, found, P99_TO_P50, at_most=True)


def same_numbers(native: Cell) -> Cell:
    """The V2 JSON cell of the same block and numbers."""
    face = "json" if WORKLOADS[native.workload].by_block else "block-json"
    return Cell(native.workload, face, native.connections)
