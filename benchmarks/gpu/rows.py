"""Measurements as JSON lines, appended one by one, and the processes that make them; a later run continues the file."""

import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


class Rows:
    """The rows of a file; the last row of a cell counts."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.runs: list[Row] = []
        self._cells: dict[str, Row] = {}
        for line in file.read_text().splitlines() if file.exists() else ():
            self._index(json.loads(line))

    def begin(self, **about: Any) -> None:
        """Append the row of a run, with the fields ``about``."""
        self._write({"run": datetime.now(UTC).isoformat(timespec="seconds"), **about})

    def add(self, cell: str, **fields: Any) -> None:
        self._write({"cell": cell, **fields})

    def has(self, cell: str) -> bool:
        """Whether the cell has been measured."""
        return cell in self._cells and cell not in self.failed

    def part(self, part: str) -> dict[str, Row]:
        """The measured rows of a part, by cell."""
        return {name: row for name, row in self._cells.items() if name.startswith(f"{part}/") and "failed" not in row}

    @property
    def failed(self) -> dict[str, str]:
        """The reason for each missing measurement."""
        return {name: row["failed"] for name, row in self._cells.items() if "failed" in row}

    @property
    def wrong(self) -> dict[str, list[str]]:
        """The wrong numbers of each cell that has some."""
        return {name: row["wrong"] for name, row in self._cells.items() if row.get("wrong")}

    def _write(self, row: Row) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._index(row)

    def _index(self, row: Row) -> None:
        if "run" in row:
            self.runs.append(row)
        else:
            self._cells[row["cell"]] = row


def in_processes(count: int, tasks: Mapping[tuple[str, ...], Callable[[], list[Row]]]) -> Iterator[tuple[str, Row]]:
    """The rows of the cells of each task, each task in a process of its own, ``count`` at a time."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, torch.set_num_threads, (1,), max_tasks_per_child=1) as pool:
        running = {pool.submit(task): cells for cells, task in tasks.items()}
        for done in as_completed(running):
            cells, error = running[done], done.exception()
            yield from zip(cells, [failed(error)] * len(cells) if error else done.result(), strict=True)


def failed(error: BaseException) -> Row:
    """The row of a cell that could not be measured."""
    return {"failed": f"{type(error).__name__}: {error}"[:500]}
