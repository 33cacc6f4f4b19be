"""The cell that a turn measures, and the duration of the turn."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.serving.servers import Server
from benchmarks.serving.workloads import WORKLOADS

IDS = ("none", "same", "different")  # the V2 id of successive requests


@dataclass(frozen=True)
class Cell:
    workload: str
    format: str
    connections: int
    ids: str = "none"

    def __str__(self) -> str:
        return "/".join([self.workload, self.format, str(self.connections), *[f"id {self.ids}"] * (self.ids != "none")])

    @property
    def without_id(self) -> "Cell":
        return Cell(self.workload, self.format, self.connections)

    def models(self) -> set[str]:
        """The models that the repository must have for this cell."""
        workload = WORKLOADS[self.workload]
        by_block = workload.by_block or self.format in ("block-json", "native")
        return {workload.graph, workload.block} if by_block else {workload.graph}

    def is_supported_by(self, server: Server | None) -> bool:
        """Whether ``server`` supports this cell; None is the in-process baseline."""
        if server is None:
            return self.format == "json" and self.ids == "none"
        supported = server.supports(self.format, WORKLOADS[self.workload])
        return supported and (self.ids == "none" or server.formats[self.format][0].startswith("v2"))


@dataclass(frozen=True)
class Timing:
    """Seconds of load and of warm-up; a turn in which other processes used over ``quiet`` cores is repeated."""

    seconds: int
    warmup: int
    quiet: float
    attempts: int = 3


def plan(
    workloads: Iterable[str],
    formats: Iterable[str],
    concurrency: Iterable[int],
    ids: Iterable[str],
    servers: Mapping[str, Server | None],
) -> dict[Cell, list[str]]:
    """The cells and the servers that support them; the default of ``concurrency`` is the workload's."""
    cells = [
        Cell(workload, format, connections, id_mode)
        for workload in workloads
        for format in formats
        for connections in concurrency or WORKLOADS[workload].connections
        for id_mode in ids
    ]
    supported = {cell: [name for name, server in servers.items() if cell.is_supported_by(server)] for cell in cells}
    return {cell: names for cell, names in supported.items() if names}
