"""Time on the device compared with torch's; each dtype runs in another process."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.gpu.cells import Engine
from benchmarks.gpu.worker import WorkerFailed, run_worker

TIMEOUT_S = 450  # for one dtype
REPEATS = 5


def measure_all(cells: Sequence[Engine], repository: Path, provider: str) -> Iterator[tuple[Engine, dict[str, Any]]]:
    """Measure each cell. After a crash, the next cell continues in another process."""
    for _, several in groupby(cells, key=lambda cell: cell.dtype):
        left = list(several)
        while left:
            request = {
                "cells": [asdict(cell) for cell in left], "repository": str(repository), "provider": provider,
                "repeats": REPEATS,
            }  # fmt: skip
            try:
                for row in run_worker("benchmarks.gpu.time_attention", request, TIMEOUT_S):
                    cell = left.pop(0)
                    yield cell, row | asdict(cell)
            except WorkerFailed as error:
                yield left.pop(0), {"failed": str(error)}
