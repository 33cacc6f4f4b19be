"""The flags of ``python -m benchmarks.serving``."""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.serving import graphs, hardware
from benchmarks.serving.cell import Cell
from benchmarks.serving.servers import FACES, NAMES, Server, heed, running
from benchmarks.serving.workloads import WORKLOADS

RESULTS = Path(__file__).parents[1] / "results"
KEPT = graphs.ROOT / ".venv" / "bench"  # what is made once: the environments of others, the models
ABOUT = """\
Heed beside yardsticks and other servers.

All servers run at the same time, idle but for the one whose turn it is. In every cell (workload / face / connections)
they take turns, as often as there are repeats; ratios are of turns next to each other. The load generator, wrk, has one
thread and runs on the cores that the servers run on.
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
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
