"""Measurements from JSON lines, and ratios of adjacent turns.

Triton was measured with several settings. Its turns in a cell are those of the setting with the highest rate there.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report.spread import Spread, spread_of
from benchmarks.serving.cell import Cell
from benchmarks.serving.servers import TRITON


class Results:
    """The runs and turns in the rows of JSON lines."""

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
                cell = Cell(row["workload"], row["format"], row["connections"], row["ids"])
                self.turns[row["server"], cell][row["run"], row["repeat"]] = row
        self._measured = dict(self.turns)
        self.settings = {key: self.turns.pop(key) for key in self._measured if key[0].startswith(f"{TRITON}-")}
        self.best: dict[Cell, str] = {}  # cell -> Triton's best setting
        for setting, cell in sorted(self.settings, key=lambda key: self._median(self.settings[key])):
            self.best[cell] = setting
            self.turns[TRITON, cell] = self.settings[setting, cell]

    @classmethod
    def read(cls, file: Path) -> "Results":
        return cls(json.loads(line) for line in file.read_text().splitlines())

    @staticmethod
    def _median(rows: dict[tuple[str, int], dict[str, Any]]) -> float:
        return median(row["rps"] for row in rows.values())

    @property
    def servers(self) -> list[str]:
        return list(dict.fromkeys(server for server, _ in self.turns))

    @property
    def cells(self) -> list[Cell]:
        return sorted(
            {cell for _, cell in self.turns}, key=lambda cell: (cell.workload, cell.format, cell.connections, cell.ids)
        )

    def all(self) -> list[dict[str, Any]]:
        return [row for rows in self._measured.values() for row in rows.values()]

    def spread(self, server: str, cell: Cell, key: str = "rps", per: str | None = None) -> Spread | None:
        """The spread over turns of ``key``, divided by ``per`` if given; None if no turn has them."""
        rows = {**self.settings, **self.turns}.get((server, cell), {}).values()
        return spread_of(
            row[key] / (row[per] if per else 1)
            for row in rows
            if row.get(key) is not None and (per is None or row.get(per))
        )

    def is_rough(self, server: str, cell: Cell) -> bool:
        """Whether a turn ended with fewer than three responses per connection."""
        return any(row["requests"] < 3 * cell.connections for row in self.turns.get((server, cell), {}).values())

    def ratio(self, server: str, cell: Cell, other: str, other_cell: Cell | None = None) -> Spread | None:
        """Requests a second of ``server`` over those of ``other`` in the same repeat of the same run."""
        numerators, denominators = self.turns.get((server, cell), {}), self.turns.get((other, other_cell or cell), {})
        return spread_of(
            row["rps"] / denominators[repeat]["rps"]
            for repeat, row in numerators.items()
            if repeat in denominators and denominators[repeat]["rps"]
        )
