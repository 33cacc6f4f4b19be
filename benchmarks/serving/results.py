"""What was measured, out of its JSON lines, and ratios of turns that stood next to each other."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.serving.cell import Cell


@dataclass(frozen=True)
class Spread:
    """A median, and the smallest and largest of ``count`` repeats."""

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)} to {_short(self.high)})"


class Results:
    """The runs and turns of some JSON lines."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.runs: list[dict[str, Any]] = []
        self.failed: list[dict[str, Any]] = []
        self.turns: dict[tuple[str, Cell], dict[tuple[str, int], dict[str, Any]]] = defaultdict(dict)
        for row in rows:
            if row["kind"] == "run":
                self.runs.append(row)
            elif row["kind"] == "failed":
                self.failed.append(row)
            else:
                cell = Cell(row["workload"], row["face"], row["connections"], row["ids"])
                self.turns[row["server"], cell][row["run"], row["repeat"]] = row

    @classmethod
    def read(cls, file: Path) -> "Results":
        return cls(json.loads(line) for line in file.read_text().splitlines())

    @property
    def servers(self) -> list[str]:
        return list(dict.fromkeys(server for server, _ in self.turns))

    @property
    def cells(self) -> list[Cell]:
        return sorted({cell for _, cell in self.turns}, key=lambda of: (of.workload, of.face, of.connections, of.ids))

    def all(self) -> list[dict[str, Any]]:
        return [row for rows in self.turns.values() for row in rows.values()]

    def spread(self, server: str, cell: Cell, what: str = "rps", per: str | None = None) -> Spread | None:
        """Of one number of the turns, divided by another of the same turn if so asked; None when there is none."""
        rows = self.turns.get((server, cell), {}).values()
        return spread_of(
            row[what] / (row[per] if per else 1)
            for row in rows
            if row.get(what) is not None and (per is None or row.get(per))
        )

    def rough(self, server: str, cell: Cell) -> bool:
        """Whether a turn ended before each connection had three answers."""
        return any(row["requests"] < 3 * cell.connections for row in self.turns.get((server, cell), {}).values())

    def ratio(self, server: str, cell: Cell, other: str, others: Cell | None = None) -> Spread | None:
        """Requests a second of ``server`` over those of ``other`` in the same repeat of the same run."""
        mine, theirs = self.turns.get((server, cell), {}), self.turns.get((other, others or cell), {})
        return spread_of(
            row["rps"] / theirs[at]["rps"] for at, row in mine.items() if at in theirs and theirs[at]["rps"]
        )


def spread_of(numbers: Iterable[float]) -> Spread | None:
    """Of some numbers; None of none."""
    found = list(numbers)
    return Spread(median(found), min(found), max(found), len(found)) if found else None


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
