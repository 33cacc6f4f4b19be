"""A run: starts the servers and writes each turn as a JSON line."""

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

from benchmarks.report import hardware
from benchmarks.serving import environment
from benchmarks.serving.cell import Cell, Timing
from benchmarks.serving.servers import Server, python_of
from benchmarks.serving.turn import Contestant, RunningServer, run_turn, start_contestant, write_floor_responses
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
    """Start the servers that have a cell, one after the other; print why one does not start, and omit it."""
    workloads = sorted({cell.workload for cell in cells})
    write_floor_responses(scratch / "answers", models, [WORKLOADS[name] for name in workloads])
    started: dict[str, Contestant] = {}
    for i, (name, server) in enumerate(servers.items()):
        supported = [cell for cell, names in cells.items() if name in names]
        if not supported:
            continue
        console.print(f"starting {name}")
        if server and server.requirements:
            environment.prepare(python_of(server, options.venvs), server.requirements)
        try:
            port = options.port + PORTS_EACH * i
            context = start_contestant(name, server, supported[0], models, scratch, options.venvs, port)
            started[name] = stack.enter_context(context)
        except RuntimeError as error:
            console.print(f"{name} is omitted: {error}", markup=False)
    return started


def measure(
    started: dict[str, Contestant],
    cells: dict[Cell, list[str]],
    timing: Timing,
    options: argparse.Namespace,
    console: Console,
) -> None:
    """Run all turns; append each as a JSON line as soon as it is done."""
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
            name: running.about() or environment.versions(python_of(running.server, options.venvs), PACKAGES)
            for name, running in started.items()
            if isinstance(running, RunningServer) and running.server.command
        }
        command = " ".join(["python -m benchmarks.serving", *sys.argv[1:]])
        write("run", {"command": command, "quiet": timing.quiet, "machine": hardware.describe(), "versions": versions})
        task = progress.add_task("", total=len(turns))
        for repeat, cell, name in turns:
            progress.update(task, description=f"{cell} {name}")
            row = {"server": name, "repeat": repeat, **run_turn(started[name], cell, timing)}
            write("failed" if "failed" in row else "turn", row)
            if "failed" in row:
                progress.console.print(f"{name} {cell}: {row['failed']}", markup=False)
            progress.advance(task)


def _turns(
    started: dict[str, Contestant], cells: dict[Cell, list[str]], repeats: int
) -> Iterator[tuple[int, Cell, str]]:
    """The turns cell by cell; each repeat begins with another server."""
    for cell, supported in cells.items():
        names = [name for name in supported if name in started]
        for repeat in range(repeats):
            first = repeat % max(1, len(names))
            for name in names[first:] + names[:first]:
                yield repeat, cell, name
