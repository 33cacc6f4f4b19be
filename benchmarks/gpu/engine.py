"""Time on the device beside torch's: each dtype in a process of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.gpu.cells import Engine
from benchmarks.gpu.worker import WorkerDied, ask

SECONDS = 450  # for one dtype
REPEATS = 5


def measure_all(cells: Sequence[Engine], repository: Path, provider: str) -> Iterator[tuple[Engine, dict[str, Any]]]:
    """What came of each; one that takes the process down is left, and the next goes on in another."""
    for _, several in groupby(cells, key=lambda cell: cell.dtype):
        left = list(several)
        while left:
            asked = {
                "cells": [asdict(cell) for cell in left], "repository": str(repository), "provider": provider,
                "repeats": REPEATS,
            }  # fmt: skip
            try:
                for found in ask("benchmarks.gpu.time_attention", asked, SECONDS):
                    cell = left.pop(0)
                    yield cell, found | asdict(cell)
            except WorkerDied as error:
                yield left.pop(0), {"failed": str(error)}
