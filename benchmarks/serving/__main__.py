"""Heed beside yardsticks and other servers: ``make bench``, or ``python -m benchmarks.serving``.

All servers run at the same time, idle but for the one whose turn it is; in every cell (workload / face / connections)
they take turns, as often as there are repeats, and ratios are of turns next to each other. The load generator, wrk, has
one thread and runs on the cores that the servers run on.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.serving import environment, graphs, hardware, profiling, report
from benchmarks.serving.load import wrk
from benchmarks.serving.servers import FACES, NAMES, SERVERS, Server, heed, python_of, running
from benchmarks.serving.turn import Cell, Contestant, Running, Timing, contestant, take, write_answers
from benchmarks.serving.workloads import WORKLOADS

RESULTS = Path(__file__).parents[1] / "results"
KEPT = graphs.ROOT / ".venv" / "bench"  # what is made once: the peers' environments, the models
PACKAGES = ("onnxruntime", "numpy", "orjson", "fastapi", "uvicorn", "uvloop", "mlserver", "litserve")
PORTS_EACH = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or profile one cell, or only render; answers the exit status."""
    options = _options(arguments)
    console = Console(highlight=False, stderr=True)
    if options.report:
        print(report.render(options.report))
        return 0
    try:
        wrk()
    except FileNotFoundError as error:
        console.print(f"benchmarks.serving: {error}")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    timing = Timing(options.seconds, options.warmup, options.quiet)
    if options.profile:
        cells = {options.profile: ["heed"]}
        servers: dict[str, Server | None] = {"heed": heed(flags=options.profile_flags)}
    else:
        servers = {name: SERVERS.get(name) for name in options.servers}
        servers |= {server.name: server for server in (*options.heed, *options.url)}
        cells = _cells(options, servers)
    if not cells:
        console.print("benchmarks.serving: no server chosen has a cell chosen")
        return 2
    try:
        models = _models(options.models, cells, console)
        with TemporaryDirectory() as scratch, ExitStack() as stack:
            started = _start(stack, servers, cells, models, Path(scratch), options, console)
            if options.profile:
                file = options.out.with_name(f"{options.out.stem}-{str(options.profile).replace('/', '-')}")
                profiled = started["heed"]
                assert isinstance(profiled, Running)
                profiling.profile(profiled, options.profile, timing, file.with_suffix(".speedscope.json"))
                return 0
            _measure(started, cells, timing, options, console)
    except KeyboardInterrupt:
        console.print("interrupted; what was measured is kept")
    except (RuntimeError, subprocess.CalledProcessError) as error:
        console.print(f"benchmarks.serving: {error}\n{getattr(error, 'stderr', None) or ''}", markup=False)
        return 1
    if not options.out.exists():
        return 1
    console.print(f"{report.render(options.out)}, from {options.out}")
    return 0


def _cells(options: argparse.Namespace, servers: dict[str, Server | None]) -> dict[Cell, list[str]]:
    """Each cell chosen, and who has it."""
    found = {}
    for workload in (WORKLOADS[name] for name in options.workloads):
        for face in options.faces:
            for connections in options.concurrency or workload.connections:
                for ids in ("none", "same", "different") if options.vary_id else ("none",):
                    who = [name for name, server in servers.items() if _has(server, workload.name, face, ids)]
                    if who and connections in workload.connections + tuple(options.concurrency):
                        found[Cell(workload.name, face, connections, ids)] = who
    return found


def _has(server: Server | None, workload: str, face: str, ids: str) -> bool:
    if server is None:
        return face == "json" and ids == "none"
    return server.has(face, WORKLOADS[workload]) and (ids == "none" or server.faces[face][0].startswith("v2"))


def _models(given: Path | None, cells: dict[Cell, list[str]], console: Console) -> Path:
    """The repository: what the cells need is written where it is missing, in a process of its own."""
    folder = given or KEPT / f"models-{graphs.fingerprint()}"
    needed = {name: None for cell in cells for name in (WORKLOADS[cell.workload].graph,)}
    for cell in cells:
        workload = WORKLOADS[cell.workload]
        if workload.by_block or cell.face in ("block-json", "native"):
            needed[workload.block] = None
    missing = [name for name in needed if not (folder / name / "1" / "model.onnx").exists()]
    if missing:
        console.print(f"exporting {', '.join(missing)} into {folder}")
        command = [sys.executable, "-m", "benchmarks.serving.graphs", str(folder.resolve()), *missing]
        subprocess.run(command, cwd=graphs.ROOT, check=True, capture_output=True, text=True)
    return folder.resolve()


def _start(
    stack: ExitStack,
    servers: dict[str, Server | None],
    cells: dict[Cell, list[str]],
    models: Path,
    scratch: Path,
    options: argparse.Namespace,
    console: Console,
) -> dict[str, Contestant]:
    """Those that have a cell, started one after the other; one that does not start is left out, with a line why."""
    write_answers(
        scratch / "answers", models, list({cell.workload: WORKLOADS[cell.workload] for cell in cells}.values())
    )
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


def _measure(
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


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{hardware.slug()}.jsonl"
    listed = "\n".join(f"  {of.name}  {of.what}" for of in WORKLOADS.values())
    parser.epilog = f"workloads:\n{listed}"
    add = parser.add_argument
    add("--workloads", type=_among(WORKLOADS), default=list(WORKLOADS), metavar="W1,...", help="default: all")
    add("--faces", type=_among(FACES), default=list(FACES), metavar="FACE,...", help=", ".join(FACES))
    add("--concurrency", type=_numbers, default=[], metavar="C,...", help="connections; default: each workload's own")
    add("--servers", type=_among(NAMES), default=list(NAMES), metavar="NAME,...", help=", ".join(NAMES))
    add("--heed", type=_named(heed), action="append", default=[], metavar="NAME=FLAGS", help="Heed again, so set")
    add("--url", type=_named(running), action="append", default=[], metavar="NAME=URL", help="a V2 server that runs")
    add("--vary-id", action="store_true", help="each V2 cell again with an id, the same and another in each request")
    add("--repeats", type=_whole, default=5, help="turns of each server in each cell (default 5)")
    add("--seconds", type=_whole, default=4, help="load of one turn (default 4)")
    add("--warmup", type=int, default=1, help="load before it (default 1)")
    add("--quiet", type=float, default=0.2, help="cores others may use before a turn is repeated (default 0.2)")
    add("--out", type=Path, default=out, help="JSON lines, added to; the report lies beside them (default %(default)s)")
    add("--port", type=_whole, default=18200, help="servers listen on 127.0.0.1 from here on (default 18200)")
    add("--models", type=Path, help="model repository to use and to complete (default: one kept in .venv/bench)")
    add("--venvs", type=Path, default=KEPT, help="environments of the peers, made on first use")
    add("--report", type=Path, metavar="FILE", help="measure nothing, render the report of these JSON lines")
    add("--profile", type=_cell, metavar="CELL", help="sample Heed under the load of W2/json/8, say, for --seconds")
    add("--profile-flags", default="", metavar="FLAGS", help="flags of heed serve while it is profiled")
    return parser.parse_args(arguments)


def _among(known: Any) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return parse


def _named(make: Any) -> Any:
    def parse(text: str) -> Server:
        name, equals, value = text.partition("=")
        if not name or not equals or name in NAMES:
            raise argparse.ArgumentTypeError(f"expected NAME=..., a name of its own, got {text!r}")
        server: Server = make(name, value)
        return server

    return parse


def _cell(text: str) -> Cell:
    workload, _, rest = text.partition("/")
    face, _, connections = rest.partition("/")
    if workload not in WORKLOADS or face not in FACES:
        raise argparse.ArgumentTypeError(f"expected WORKLOAD/FACE/CONNECTIONS, W2/json/8 say, got {text!r}")
    return Cell(workload, face, _whole(connections))


def _numbers(text: str) -> list[int]:
    return [_whole(each) for each in text.split(",")]


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
