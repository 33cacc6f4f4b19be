"""A run: servers started, and every turn written down as one JSON line."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.serving import environment, hardware
from benchmarks.serving.cell import Cell, Timing
from benchmarks.serving.servers import Server, python_of
from benchmarks.serving.turn import Contestant, Running, contestant, take, write_answers
from benchmarks.serving.workloads import WORKLOADS

PACKAGES = ("onnxruntime", "numpy", "orjson", "fastapi", "uvicorn", "uvloop", "mlserver", "litserve")
PORTS_EACH = 4


def start(
    stack: ExitStack,
    servers: dict[str, Server | None],
    cells: dict[Cell, list[str]],
    models: Path,
    scratch: Path,
    options: argparse.Namespace,
    console: Console,
) -> dict[str, Contestant]:
    """Those that have a cell, started one after the other; one that does not start is left out, with a line why."""
    workloads = sorted({cell.workload for cell in cells})
    write_answers(scratch / "answers", models, [WORKLOADS[name] for name in workloads])
    started: dict[str, Contestant] = {}
    for i, (name, server) in enumerate(servers.items()):
        own = [cell for cell, who in cells.items() if name in who]
        if not own:
            continue
        console.print(f"starting {name}")
        if server and server.requirements:
            environment.prepare(python_of(server, options.venvs), server.requirements)
        try:
            enter = contestant(name, server, own[0], models, scratch, options.venvs, options.port + PORTS_EACH * i)
            started[name] = stack.enter_context(enter)
        except RuntimeError as error:
            console.print(f"{name} is left out: {error}", markup=False)
    return started


def measure(
    started: dict[str, Contestant],
    cells: dict[Cell, list[str]],
    timing: Timing,
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Every turn as one JSON line, written at once."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    run = datetime.now(UTC).isoformat(timespec="seconds")
    turns = list(_turns(started, cells, options.repeats))
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with (
        options.out.open("a") as file,
        Progress(*columns, console=console, speed_estimate_period=600) as progress,
    ):

        def write(kind: str, row: dict[str, Any]) -> None:
            file.write(json.dumps({"kind": kind, "run": run, **row}) + "\n")
            file.flush()

        versions = {
            name: environment.versions(python_of(on.server, options.venvs), PACKAGES)
            for name, on in started.items()
            if isinstance(on, Running) and on.server.command
        }
        command = " ".join(["python -m benchmarks.serving", *sys.argv[1:]])
        write("run", {"command": command, "quiet": timing.quiet, "machine": hardware.describe(), "versions": versions})
        task = progress.add_task("", total=len(turns))
        for repeat, cell, name in turns:
            progress.update(task, description=f"{cell} {name}")
            row = {"server": name, "repeat": repeat, **take(started[name], cell, timing)}
            write("failed" if "failed" in row else "turn", row)
            if "failed" in row:
                progress.console.print(f"{name} {cell}: {row['failed']}", markup=False)
            progress.advance(task)


def _turns(
    started: dict[str, Contestant], cells: dict[Cell, list[str]], repeats: int
) -> Iterator[tuple[int, Cell, str]]:
    """Cell by cell; in each repeat another begins."""
    for cell, who in cells.items():
        there = [name for name in who if name in started]
        for repeat in range(repeats):
            first = repeat % max(1, len(there))
            for name in there[first:] + there[:first]:
                yield repeat, cell, name
