"""The command line of ``python -m benchmarks.serving``."""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import CACHE, RESULTS
from benchmarks.report import hardware
from benchmarks.serving.cell import Cell
from benchmarks.serving.servers import FORMATS, NAMES, TRITON_SETTINGS, Server, external, heed
from benchmarks.serving.workloads import SERIES, SIX, WORKLOADS

TRITON = Path("/opt/tritonserver")
DESCRIPTION = """\
Compare Heed with baselines and other servers.

All servers run at the same time, and one of them is under load. In every cell (workload / format / connections) they
take turns, as many as there are repeats; ratios are of adjacent turns. The load generator, wrk, has one thread and runs
on the same cores as the servers.
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.serving", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{hardware.slug()}.jsonl"
    listed = "\n".join(f"  {workload.name}  {workload.description}" for workload in SIX.values())
    series = "\n".join(f"  {name}: {one.description}" for name, one in SERIES.items())
    parser.epilog = f"workloads:\n{listed}\n\nseries of growing workloads:\n{series}"
    add = parser.add_argument
    add("--workloads", type=_workloads, default=list(SIX), metavar="W1,...", help="or series (default: W1 to W6)")
    add("--formats", type=_among(FORMATS), default=list(FORMATS), metavar="FORMAT,...", help=", ".join(FORMATS))
    add("--concurrency", type=_numbers, default=[], metavar="C,...", help="connections; default: each workload's own")
    add("--servers", type=_among(NAMES), default=list(NAMES), metavar="NAME,...", help=", ".join(NAMES))
    add("--heed", type=_named(heed), action="append", default=[], metavar="NAME=FLAGS", help="Heed with other settings")
    add("--url", type=_named(external), action="append", default=[], metavar="NAME=URL", help="a running V2 server")
    add("--triton-binary", type=Path, default=TRITON / "bin" / "tritonserver", help="default: that of its container")
    add("--triton-backends", type=Path, default=TRITON / "backends", help="folder that has onnxruntime (%(default)s)")
    add("--triton-libraries", default="", metavar="PATH", help="LD_LIBRARY_PATH of Triton")
    settings = "instances x threads of each[-batching] (default: " + ", ".join(TRITON_SETTINGS) + ")"
    add(
        "--triton-settings",
        type=_among(TRITON_SETTINGS),
        default=list(TRITON_SETTINGS),
        metavar="2x1,...",
        help=settings,
    )
    add("--vary-id", action="store_true", help="repeat V2 cells with the same id, and with a new id in each request")
    add("--repeats", type=_whole, default=5, help="turns of each server in each cell (default 5)")
    add("--seconds", type=_whole, default=4, help="duration of a turn (default 4)")
    add("--warmup", type=int, default=1, help="seconds of load before each turn (default 1)")
    add("--quiet", type=float, default=0.2, help="repeat a turn if others use more cores (default 0.2)")
    add("--out", type=Path, default=out, help="JSON lines, appended to; the report is beside them (%(default)s)")
    add("--port", type=_whole, default=18200, help="first port of the servers on 127.0.0.1 (default 18200)")
    add("--models", type=Path, help="model repository; missing models are exported (default: in .venv/bench)")
    add("--venvs", type=Path, default=CACHE, help="environments of the other servers, created on first use")
    add("--report", type=Path, metavar="FILE", help="only render the report of these JSON lines")
    add("--profile", type=_cell, metavar="CELL", help="profile Heed for --seconds under the load of a cell: W2/json/8")
    add("--profile-flags", default="", metavar="FLAGS", help="flags of heed serve for --profile")
    return parser.parse_args(arguments)


def _workloads(text: str) -> list[str]:
    names = _among([*WORKLOADS, *SERIES])(text)
    several = {series: [one.name for one in SERIES[series].workloads.values()] for series in SERIES}
    return [workload for name in names for workload in several.get(name, [name])]


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
    format, _, connections = rest.partition("/")
    if workload not in WORKLOADS or format not in FORMATS:
        raise argparse.ArgumentTypeError(f"expected WORKLOAD/FORMAT/CONNECTIONS, such as W2/json/8, got {text!r}")
    return Cell(workload, format, _whole(connections))


def _numbers(text: str) -> list[int]:
    return [_whole(item) for item in text.split(",")]


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)
