"""Everything that needs a GPU, by one command: ``make bench-gpu``, or ``python -m benchmarks.gpu``."""

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from time import monotonic
from typing import Any

import onnxruntime
from rich.console import Console

from benchmarks.gpu import cells, engine, exported, machine, numbers, over_http, over_tests, report, uninstalled
from benchmarks.gpu.cells import BLOCK, Cell
from benchmarks.gpu.options import parse
from benchmarks.gpu.rows import Rows
from models.catalogue import BLOCKS

Found = Iterator[tuple[Cell, dict[str, Any]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is not yet in the file, and render it; 0 if no number was wrong and all could be measured."""
    console = Console(highlight=False, stderr=True, soft_wrap=True, markup=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    try:
        options = parse(arguments)
        if options.report:
            print(report.render(options.report))
            return 0
        rows = _begun(options)
    except (RuntimeError, ValueError) as error:
        console.print(f"benchmarks.gpu: {error}")
        return 2
    os.environ["LD_LIBRARY_PATH"] = machine.with_libraries(os.environ.get("LD_LIBRARY_PATH", ""))
    end = monotonic() + 60 * options.minutes
    try:
        with uninstalled.known():
            for part in options.parts:
                if monotonic() > end:
                    console.print(f"{part}: not begun in {options.minutes:g} minutes; run again")
                    continue
                try:
                    _measure(part, options, rows, end, console)
                    rows.settle(f"part/{part}")
                except (OSError, RuntimeError) as error:  # the other parts go on
                    rows.settle(f"part/{part}", f"{type(error).__name__}: {error}"[:500])
    except KeyboardInterrupt:
        console.print("interrupted; what was measured is kept")
    console.print(f"{report.render(options.out)}, from {options.out}")
    for name, said in {**rows.failed, **{name: "; ".join(several) for name, several in rows.wrong.items()}}.items():
        console.print(f"{name}: {said}")
    return int(bool(rows.failed or rows.wrong))


def _begun(options: Namespace) -> Rows:
    """The file of rows, with a run begun in it.

    Raises:
        RuntimeError: there is no GPU, or nothing that could use it.
        ValueError: the file is of other runs.
    """
    if options.provider == "cuda" and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise RuntimeError("this ONNX Runtime is built without CUDA: install onnxruntime-gpu in its place")
    if options.provider == "cuda" and "engine" in options.parts and not machine.torch_sees_a_gpu():
        raise RuntimeError("this torch sees no GPU: install its build for CUDA, or leave out the part engine")
    rows = Rows(options.out)
    rows.begin(
        command=" ".join(["python -m benchmarks.gpu", *sys.argv[1:]]),
        provider=options.provider,
        quick=options.quick,
        dtypes=options.dtypes,
        machine=machine.describe(options.provider),
        versions=machine.versions(),
    )
    return rows


def _measure(part: str, options: Namespace, rows: Rows, end: float, console: Console) -> None:
    """The cells of a part that this code has not measured yet; none is begun after ``end``."""
    planned = _planned(part, options)
    left = [cell for cell in planned if options.again or not rows.has(cell)]
    if not left:
        console.print(f"{part}: all {len(planned)} are in the file")
        return
    _export(part, options, rows, console)
    done = 0
    with closing(_found(part, left, options)) as found:
        for cell, row in found:
            rows.add(cell, **row)
            done += 1
            said = row.get("failed") or ("WRONG" if row.get("wrong") else "ok")
            console.print(f"[{done}/{len(left)}] {cell}: {said.splitlines()[-1]}")
            if monotonic() > end and done < len(left):
                console.print(f"{part}: {len(left) - done} were not reached in {options.minutes:g} minutes; run again")
                return


def _planned(part: str, options: Namespace) -> Sequence[Cell]:
    if part == "numbers":
        return cells.numbers(options.blocks, options.dtypes, options.quick)
    if part == "tests":
        return cells.tests(options.quick)
    return cells.engine(options.dtypes, options.quick) if part == "engine" else cells.http(options.quick)


def _found(part: str, left: Sequence[Any], options: Namespace) -> Found:
    where = options.repository, options.provider
    if part == "numbers":
        return numbers.check_all(left, *where, options.jobs)
    if part == "tests":
        return ((cell, over_tests.run(cell, *where)) for cell in left)
    return engine.measure_all(left, *where) if part == "engine" else over_http.measure_all(left, *where)


def _export(part: str, options: Namespace, rows: Rows, console: Console) -> None:
    blocks = {"numbers": options.blocks or BLOCKS, "tests": BLOCKS}.get(part, [BLOCK])
    for dtype in options.dtypes if part in ("numbers", "engine") else ["float32"]:
        console.print(f"{part}: exporting what the repository lacks in {dtype}")
        trouble = exported.complete(options.repository, blocks, dtype, options.provider, options.jobs)
        rows.settle(f"export/{part}/{dtype}", trouble)


if __name__ == "__main__":
    sys.exit(main())
