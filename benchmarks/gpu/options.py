"""The command line of ``python -m benchmarks.gpu``."""

import argparse
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu import machine
from benchmarks.gpu.rows import ROOT
from benchmarks.serving.graphs import fingerprint
from models.catalogue import BLOCKS
from models.precision import DTYPES

PARTS = {
    "numbers": "all blocks, dtypes, options and example sizes against the float64 reference",
    "tests": "the numeric tests over HTTP, with the service on the provider",
    "engine": "time and memory on the device compared with torch's kernels",
    "http": "throughput over HTTP compared with the service on the CPU",
}
RESULTS = ROOT / "benchmarks" / "results"
CACHE = ROOT / ".venv" / "bench"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the flags; a wrong argument exits with status 2.

    Raises:
        RuntimeError: there is no GPU.
    """
    listed = "\n".join(f"  {name:8} {description}" for name, description in PARTS.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description="All measurements on a GPU, in one report.", epilog=f"parts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    add("--provider", choices=("cuda", "cpu"), default="cuda", help="cpu: a trial of the command, not a result")
    add("--quick", action="store_true", help="a trial with few examples, small sizes, short loads")
    add("--blocks", nargs="+", choices=list(BLOCKS), default=[], metavar="BLOCK", help="for numbers; default: all")
    add("--dtypes", nargs="+", choices=DTYPES, help="default: all on cuda, float32 on cpu")
    add("--repository", type=Path, help="missing models are exported into it (default: in .venv/bench)")
    add("--out", type=Path, help="JSON lines, appended to; the report is beside them (default: in benchmarks/results)")
    add("--minutes", type=float, default=math.inf, help="stop after this time; the next run continues")
    add("--again", action="store_true", help="repeat measurements that are in the file")
    add("--jobs", type=int, default=min(16, os.cpu_count() or 1), help="processes for numbers and export (%(default)s)")
    add("--report", type=Path, metavar="FILE", help="only render the report of these JSON lines")
    options = parser.parse_args(arguments)
    if options.report:
        return options
    trial = options.quick or options.provider == "cpu"
    if options.out is None:
        stem = f"gpu-trial-{options.provider}" if trial else f"{datetime.now(UTC):%Y-%m-%d}-{machine.slug()}"
        options.out = (CACHE if trial else RESULTS) / f"{stem}.jsonl"
    if trial and options.out.resolve().is_relative_to(RESULTS):
        parser.error("a trial is no result: choose an --out in another folder")
    options.dtypes = options.dtypes or (list(DTYPES) if options.provider == "cuda" else ["float32"])
    options.repository = options.repository or CACHE / f"models-{options.provider}-{fingerprint()}"
    options.repository, options.out = options.repository.resolve(), options.out.resolve()
    return options
