"""Measurements as JSON lines, appended one by one; a later run reads them and continues."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CODE = ("models", "export", "service", "loadtest", "benchmarks/gpu")


class Rows:
    """The rows of a file; the last row of a cell counts. ``failed`` is the reason for a missing measurement."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.runs: list[dict[str, Any]] = []
        self.cells: dict[str, dict[str, Any]] = {}
        for line in file.read_text().splitlines() if file.exists() else ():
            self._index(json.loads(line))

    def begin(self, **about: Any) -> None:
        """Begin a run: append its row, with the fields ``about``.

        Raises:
            ValueError: the file has runs on another provider, or of another size (``quick``).
        """
        for key in ("provider", "quick"):
            if self.runs and self.runs[-1][key] != about[key]:
                raise ValueError(f"{self.file} holds runs with {key} {self.runs[-1][key]}; choose another --out")
        run = datetime.now(UTC).isoformat(timespec="seconds")
        self._write({"kind": "run", "run": run, "code": code(), **about})

    def add(self, cell: object, **fields: Any) -> None:
        last = self.runs[-1]
        self._write({"kind": "cell", "cell": str(cell), "run": last["run"], "code": last["code"], **fields})

    def set_error(self, step: str, error: str | None = None) -> None:
        """Record the error of a step that is not a cell; None clears an earlier one."""
        if error:
            self.add(step, failed=error)
        elif step in self.failed:
            self.add(step)

    def has(self, cell: object) -> bool:
        """Whether the cell was measured with the same code."""
        row = self.cells.get(str(cell))
        return row is not None and "failed" not in row and row["code"] == self.runs[-1]["code"]

    def part(self, part: str) -> dict[str, Mapping[str, Any]]:
        """The measured rows of a part, by cell."""
        return {name: row for name, row in self.cells.items() if name.startswith(f"{part}/") and "failed" not in row}

    @property
    def failed(self) -> dict[str, str]:
        return {name: row["failed"] for name, row in self.cells.items() if "failed" in row}

    @property
    def wrong(self) -> dict[str, list[str]]:
        """The wrong numbers of each cell that has some."""
        return {name: row["wrong"] for name, row in self.cells.items() if row.get("wrong")}

    def _write(self, row: dict[str, Any]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._index(row)

    def _index(self, row: dict[str, Any]) -> None:
        if row["kind"] == "run":
            self.runs.append(row)
        else:
            self.cells[row["cell"]] = row


def code() -> str:
    """A hash of the code that is measured."""
    digest = sha256()
    for file in sorted(file for folder in CODE for file in (ROOT / folder).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
