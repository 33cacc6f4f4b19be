"""``python -m benchmarks.soak [part ...]``: try to make a server fail; the exit status is 1 if a check fails."""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.soak.attack import attack
from benchmarks.soak.beside import beside
from benchmarks.soak.fuzz import fuzz
from benchmarks.soak.mix import mix
from benchmarks.soak.overload import overload
from benchmarks.soak.shapes import shapes

PARTS = {
    "mix": "3 minutes of mixed requests, errors, reloads and aborted requests",
    "overload": "a minute of ten times the load that the server can handle",
    "fuzz": "100,000 mutated requests to both APIs",
    "shapes": "200,000 requests of changing shapes",
    "beside": "small requests and probes during a request that computes for 10 seconds",
    "attack": "requests made to stop the service or to fill its memory",
}


def main(arguments: Sequence[str] | None = None) -> int:
    descriptions = "\n".join(f"  {name:10} {description}" for name, description in PARTS.items())
    parser = argparse.ArgumentParser(
        "make soak", description=f"parts:\n{descriptions}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help="parts to run (default: all)")
    parser.add_argument("--portion", type=float, default=1, help="fraction of each part to run (%(default)s)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="seed of the mutants (random)")
    parser.add_argument("--case", default="", help="run only the cases of attack whose name contains this")
    parser.add_argument("--repository", type=Path, default=Path("model_repository"), help="(%(default)s)")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {min(unknown)!r}; there are {', '.join(PARTS)}")
    runs = {
        "mix": mix,
        "overload": overload,
        "fuzz": partial(fuzz, seed=options.seed),
        "shapes": shapes,
        "beside": beside,
        "attack": partial(attack, case=options.case),
    }
    table, failures = Table("part", "requirement", "observed", ""), 0
    for name in options.parts or PARTS:
        print(f"{name}: {PARTS[name]}", flush=True)
        for check in runs[name](options.repository, options.portion):
            failures += not check.passed
            table.add_row(name, check.requirement, check.observed, "passed" if check.passed else "[red]FAILED")
    Console(width=max(120, Console().width)).print(table)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
