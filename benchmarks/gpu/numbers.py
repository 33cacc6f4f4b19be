"""Numeric checks on the provider: all blocks, dtypes, options and example sizes against the float64 reference."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.cells import Numbers
from benchmarks.gpu.worker import WorkerFailed, run_worker

TIMEOUT_S = 400  # for one block


def check_all(
    cells: Sequence[Numbers], repository: Path, provider: str, jobs: int
) -> Iterator[tuple[Numbers, dict[str, Any]]]:
    """Check the cells in ``jobs`` processes at a time; yield each result when it is ready."""

    def check(cell: Numbers) -> dict[str, Any]:
        request = asdict(cell) | {"repository": str(repository), "provider": provider}
        try:
            (result,) = run_worker("benchmarks.gpu.check_block", request, TIMEOUT_S)
        except (WorkerFailed, ValueError) as error:
            return {"failed": str(error)}
        return asdict(cell) | result

    pool = ThreadPoolExecutor(jobs)
    try:
        running = {pool.submit(check, cell): cell for cell in cells}
        for done in as_completed(running):
            yield running[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)
