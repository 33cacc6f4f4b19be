"""All measurements on a GPU: ``make bench-gpu``, or ``python -m benchmarks.gpu``."""

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

CellRows = Iterator[tuple[Cell, dict[str, Any]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cells that the file lacks and render the report; the exit status is 0 if all succeeded."""
    console = Console(highlight=False, stderr=True, soft_wrap=True, markup=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs the cleanup of context managers
    try:
        options = parse(arguments)
        if options.report:
            print(report.render(options.report))
            return 0
        rows = _begin(options)
    except (RuntimeError, ValueError) as error:
        console.print(f"benchmarks.gpu: {error}")
        return 2
    os.environ["LD_LIBRARY_PATH"] = machine.with_libraries(os.environ.get("LD_LIBRARY_PATH", ""))
    end_s = monotonic() + 60 * options.minutes
    try:
        with uninstalled.version_metadata():
            for part in options.parts:
                if monotonic() > end_s:
                    console.print(f"{part}: not begun in {options.minutes:g} minutes; run again")
                    continue
                try:
                    _measure(part, options, rows, end_s, console)
                    rows.set_error(f"part/{part}")
                except (OSError, RuntimeError) as error:  # continue with the other parts
                    rows.set_error(f"part/{part}", f"{type(error).__name__}: {error}"[:500])
    except KeyboardInterrupt:
        console.print("interrupted; the measurements so far are kept")
    console.print(f"{report.render(options.out)}, from {options.out}")
    for name, problem in {**rows.failed, **{name: "; ".join(items) for name, items in rows.wrong.items()}}.items():
        console.print(f"{name}: {problem}")
    return int(bool(rows.failed or rows.wrong))


def _begin(options: Namespace) -> Rows:
    """The rows of the file, with a new run begun.

    Raises:
        RuntimeError: there is no GPU, or ONNX Runtime or torch cannot use it.
        ValueError: the file has runs of another kind.
    """
    if options.provider == "cuda" and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise RuntimeError("this ONNX Runtime is built without CUDA: install onnxruntime-gpu in its place")
    if options.provider == "cuda" and "engine" in options.parts and not machine.torch_sees_a_gpu():
        raise RuntimeError("this torch sees no GPU: install its build for CUDA, or omit the part engine")
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


def _measure(part: str, options: Namespace, rows: Rows, end_s: float, console: Console) -> None:
    """Measure the cells of a part that the file lacks; begin none after ``end_s``."""
    planned = _planned(part, options)
    left = [cell for cell in planned if options.again or not rows.has(cell)]
    if not left:
        console.print(f"{part}: all {len(planned)} are in the file")
        return
    _export(part, options, rows, console)
    done = 0
    with closing(_run_part(part, left, options)) as cell_rows:
        for cell, row in cell_rows:
            rows.add(cell, **row)
            done += 1
            verdict = row.get("failed") or ("WRONG" if row.get("wrong") else "ok")
            console.print(f"[{done}/{len(left)}] {cell}: {verdict.splitlines()[-1]}")
            if monotonic() > end_s and done < len(left):
                console.print(f"{part}: {len(left) - done} were not reached in {options.minutes:g} minutes; run again")
                return


def _planned(part: str, options: Namespace) -> Sequence[Cell]:
    if part == "numbers":
        return cells.numbers(options.blocks, options.dtypes, options.quick)
    if part == "tests":
        return cells.tests()
    return cells.engine(options.dtypes, options.quick) if part == "engine" else cells.http(options.quick)


def _run_part(part: str, left: Sequence[Any], options: Namespace) -> CellRows:
    location = options.repository, options.provider
    if part == "numbers":
        return numbers.check_all(left, *location, options.jobs)
    if part == "tests":
        return ((cell, over_tests.run(cell, *location)) for cell in left)
    return engine.measure_all(left, *location) if part == "engine" else over_http.measure_all(left, *location)


def _export(part: str, options: Namespace, rows: Rows, console: Console) -> None:
    blocks = {"numbers": options.blocks or BLOCKS, "tests": BLOCKS}.get(part, [BLOCK])
    for dtype in options.dtypes if part in ("numbers", "engine") else ["float32"]:
        console.print(f"{part}: exporting missing models in {dtype}")
        error = exported.complete(options.repository, blocks, dtype, options.provider, options.jobs)
        rows.set_error(f"export/{part}/{dtype}", error)


if __name__ == "__main__":
    sys.exit(main())
