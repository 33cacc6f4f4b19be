"""The flags of ``python -m benchmarks.gpu``."""

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
    "numbers": "every block, dtype, option and example size against the float64 reference",
    "tests": "the numeric tests over HTTP, with the service on the provider",
    "engine": "time on the device beside torch's kernels, memory, CUDA graphs",
    "http": "throughput over HTTP beside the service on the CPU",
}
RESULTS = ROOT / "benchmarks" / "results"
KEPT = ROOT / ".venv" / "bench"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags; a mistake ends the process with status 2.

    Raises:
        RuntimeError: there is no GPU.
    """
    listed = "\n".join(f"  {name:8} {what}" for name, what in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, epilog=f"parts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.description = "Everything that needs a GPU, measured on one, into one report. What was measured is kept."
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    add("--provider", choices=("cuda", "cpu"), default="cuda", help="cpu tries the command out: no result is kept")
    add("--quick", action="store_true", help="few examples, small sizes, short loads: a trial, too")
    add("--blocks", nargs="+", choices=list(BLOCKS), default=[], metavar="BLOCK", help="of numbers; default: all")
    add("--dtypes", nargs="+", choices=DTYPES, help="default: all on cuda, float32 on cpu")
    add("--repository", type=Path, help="what it lacks is exported into it (default: one kept in .venv/bench)")
    add("--out", type=Path, help="JSON lines, added to; the report lies beside (default: in benchmarks/results)")
    add("--minutes", type=float, default=math.inf, help="begin nothing new after so many; run again to go on")
    add("--again", action="store_true", help="measure again what is in the file")
    add("--jobs", type=int, default=min(16, os.cpu_count() or 1), help="processes of numbers and export (%(default)s)")
    add("--report", type=Path, metavar="FILE", help="measure nothing, render the report of these JSON lines")
    options = parser.parse_args(arguments)
    if options.report:
        return options
    trial = options.quick or options.provider == "cpu"
    if options.out is None:
        named = f"gpu-trial-{options.provider}" if trial else f"{datetime.now(UTC):%Y-%m-%d}-{machine.slug()}"
        options.out = (KEPT if trial else RESULTS) / f"{named}.jsonl"
    if trial and options.out.resolve().is_relative_to(RESULTS):
        parser.error("a trial is no result: choose an --out elsewhere")
    options.dtypes = options.dtypes or (list(DTYPES) if options.provider == "cuda" else ["float32"])
    options.repository = options.repository or KEPT / f"models-{options.provider}-{fingerprint()}"
    options.repository, options.out = options.repository.resolve(), options.out.resolve()
    return options
