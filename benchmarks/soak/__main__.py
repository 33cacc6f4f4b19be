"""``python -m benchmarks.soak [part ...]``: try to bring a server down; exits with 1 if something does not hold."""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.soak.beside import beside
from benchmarks.soak.fuzz import fuzz
from benchmarks.soak.mix import mix
from benchmarks.soak.overload import overload
from benchmarks.soak.shapes import shapes

PARTS = {
    "mix": "3 minutes of mixed requests, errors, reloads and hang-ups",
    "overload": "a minute of ten times more requests than can be served",
    "fuzz": "100,000 mutated requests, over both faces",
    "shapes": "200,000 requests of changing shapes",
    "beside": "small requests and probes beside one that computes for 10 seconds",
}


def main(arguments: Sequence[str] | None = None) -> int:
    known = "\n".join(f"  {name:10} {what}" for name, what in PARTS.items())
    parser = argparse.ArgumentParser(
        "make soak", description=f"parts:\n{known}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help="all, unless some are named")
    parser.add_argument("--portion", type=float, default=1, help="how much of each: 0.1 is a tenth (%(default)s)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the mutants (one of its own)")
    parser.add_argument("--repository", type=Path, default=Path("model_repository"), help="(%(default)s)")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"unknown part {min(unknown)!r}; there are {', '.join(PARTS)}")
    runs = {
        "mix": mix,
        "overload": overload,
        "fuzz": partial(fuzz, seed=asked.seed),
        "shapes": shapes,
        "beside": beside,
    }
    table, broken = Table("part", "must hold", "found", ""), 0
    for name in asked.parts or PARTS:
        print(f"{name}: {PARTS[name]}", flush=True)
        for check in runs[name](asked.repository, asked.portion):
            broken += not check.held
            table.add_row(name, check.must, check.found, "holds" if check.held else "[red]DOES NOT HOLD")
    Console(width=max(120, Console().width)).print(table)
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
