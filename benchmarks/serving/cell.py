"""What a turn measures, and for how long."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.serving.servers import Server
from benchmarks.serving.workloads import WORKLOADS

IDS = ("none", "same", "different")  # the id from request to request


@dataclass(frozen=True)
class Cell:
    workload: str
    face: str
    connections: int
    ids: str = "none"

    def __str__(self) -> str:
        return "/".join([self.workload, self.face, str(self.connections), *[f"id {self.ids}"] * (self.ids != "none")])

    @property
    def without_id(self) -> "Cell":
        return Cell(self.workload, self.face, self.connections)

    def models(self) -> set[str]:
        """What the repository must hold for it."""
        workload = WORKLOADS[self.workload]
        by_block = workload.by_block or self.face in ("block-json", "native")
        return {workload.graph, workload.block} if by_block else {workload.graph}

    def measures(self, server: Server | None) -> bool:
        """Whether the server has it; None is the yardstick in process."""
        if server is None:
            return self.face == "json" and self.ids == "none"
        there = server.has(self.face, WORKLOADS[self.workload])
        return there and (self.ids == "none" or server.faces[self.face][0].startswith("v2"))


@dataclass(frozen=True)
class Timing:
    """Whole seconds of load and of warm-up; a turn in which others used more than ``quiet`` cores is repeated."""

    seconds: int
    warmup: int
    quiet: float
    attempts: int = 3


def plan(
    workloads: Iterable[str],
    faces: Iterable[str],
    concurrency: Iterable[int],
    ids: Iterable[str],
    servers: Mapping[str, Server | None],
) -> dict[Cell, list[str]]:
    """Each cell, and which servers have it; without ``concurrency`` each workload's own connections."""
    cells = [
        Cell(workload, face, connections, each)
        for workload in workloads
        for face in faces
        for connections in concurrency or WORKLOADS[workload].connections
        for each in ids
    ]
    found = {cell: [name for name, server in servers.items() if cell.measures(server)] for cell in cells}
    return {cell: who for cell, who in found.items() if who}
