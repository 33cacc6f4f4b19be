"""What was measured, as JSON lines: added to as it comes, and read back to go on where a run ended."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CODE = ("models", "export", "service", "loadtest", "benchmarks/gpu")


class Rows:
    """The lines of a file; of each cell the last counts. A row with ``failed`` says why there is no measurement."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.runs: list[dict[str, Any]] = []
        self.cells: dict[str, dict[str, Any]] = {}
        for line in file.read_text().splitlines() if file.exists() else ():
            self._take(json.loads(line))

    def begin(self, **about: Any) -> None:
        """A run starts, and what it is ``about``.

        Raises:
            ValueError: the file holds runs on another provider, or in full where this one is short.
        """
        for what in ("provider", "quick"):
            if self.runs and self.runs[-1][what] != about[what]:
                raise ValueError(f"{self.file} holds runs with {what} {self.runs[-1][what]}; choose another --out")
        run = datetime.now(UTC).isoformat(timespec="seconds")
        self._write({"kind": "run", "run": run, "code": code(), **about})

    def add(self, cell: object, **found: Any) -> None:
        last = self.runs[-1]
        self._write({"kind": "cell", "cell": str(cell), "run": last["run"], "code": last["code"], **found})

    def settle(self, what: str, trouble: str | None = None) -> None:
        """Say what failed and is no cell; or, without ``trouble``, that it does not any more."""
        if trouble:
            self.add(what, failed=trouble)
        elif what in self.failed:
            self.add(what)

    def has(self, cell: object) -> bool:
        """Whether this very code has measured it."""
        row = self.cells.get(str(cell))
        return row is not None and "failed" not in row and row["code"] == self.runs[-1]["code"]

    def of(self, part: str) -> dict[str, Mapping[str, Any]]:
        """The rows of a part that were measured."""
        return {name: row for name, row in self.cells.items() if name.startswith(f"{part}/") and "failed" not in row}

    @property
    def failed(self) -> dict[str, str]:
        return {name: row["failed"] for name, row in self.cells.items() if "failed" in row}

    @property
    def wrong(self) -> dict[str, list[str]]:
        """The cells in which a number was wrong, and which."""
        return {name: row["wrong"] for name, row in self.cells.items() if row.get("wrong")}

    def _write(self, row: dict[str, Any]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._take(row)

    def _take(self, row: dict[str, Any]) -> None:
        if row["kind"] == "run":
            self.runs.append(row)
        else:
            self.cells[row["cell"]] = row


def code() -> str:
    """Changes when what is measured does."""
    digest = sha256()
    for file in sorted(file for folder in CODE for file in (ROOT / folder).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
