"""The numeric suite on the provider: every block, dtype, option and example size against the float64 reference."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu.cells import Numbers
from benchmarks.gpu.worker import WorkerDied, ask

SECONDS = 400  # for one block


def check_all(
    cells: Sequence[Numbers], repository: Path, provider: str, jobs: int
) -> Iterator[tuple[Numbers, dict[str, Any]]]:
    """What came of each, as it ends; so many at a time, each in a process of its own."""

    def one(cell: Numbers) -> dict[str, Any]:
        asked = asdict(cell) | {"repository": str(repository), "provider": provider}
        try:
            (found,) = ask("benchmarks.gpu.check_block", asked, SECONDS)
        except (WorkerDied, ValueError) as error:
            return {"failed": str(error)}
        return asdict(cell) | found

    pool = ThreadPoolExecutor(jobs)
    try:
        running = {pool.submit(one, cell): cell for cell in cells}
        for done in as_completed(running):
            yield running[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)
