"""``make bench-gpu``, or ``python -m benchmarks.gpu``: measure the cells that the file lacks, and render the report."""

import argparse
import re
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import onnxruntime
import torch

from benchmarks import CACHE, RESULTS
from benchmarks.gpu import attention, numbers, report
from benchmarks.gpu.rows import Row, Rows, failed
from benchmarks.report import hardware
from benchmarks.serving.graphs import fingerprint
from models.catalogue import BLOCKS
from models.precision import DTYPES
from service.ort.placement import CUDA

DESCRIPTION = """\
Numbers and times on a GPU, in one report. The CI of this repository has no GPU.

parts:
  numbers    all blocks, dtypes, options and example sizes against the float64 reference
  attention  time on the device compared with torch's kernels
"""
PARTS: dict[str, Callable[[Namespace, Rows], Iterator[tuple[str, Row]]]] = {
    "numbers": numbers.measure,
    "attention": attention.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, render the report; the exit status is 0 if all succeeded, 2 if there is no GPU."""
    options = parse(arguments)
    gpu = "CPU in place of a GPU"
    if options.provider == "cuda":
        if not (torch.cuda.is_available() and CUDA in onnxruntime.get_available_providers()):
            print("no GPU, or torch or ONNX Runtime is built without CUDA (install onnxruntime-gpu)", file=sys.stderr)
            return 2
        gpu = torch.cuda.get_device_name()
    rows = Rows(options.out or _default_file(options.provider, gpu))
    rows.begin(
        command=" ".join(["python -m benchmarks.gpu", *sys.argv[1:]]),
        provider=options.provider,
        machine={"gpu": gpu, **hardware.describe()},
        versions={"torch": torch.__version__, "CUDA": torch.version.cuda, "onnxruntime": onnxruntime.__version__},
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # still renders the report
    try:
        for part in options.parts:
            _measure(part, options, rows)
    finally:
        print(f"{report.render(rows)}, from {rows.file}", file=sys.stderr)
    return int(bool(rows.failed or rows.wrong))


def parse(arguments: Sequence[str] | None) -> Namespace:
    """Parse the flags; a wrong argument exits with status 2."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    add("--provider", choices=("cuda", "cpu"), default="cuda", help="cpu: a trial of the command with small sizes")
    add("--blocks", nargs="+", choices=list(BLOCKS), default=list(BLOCKS), metavar="BLOCK", help="for numbers")
    add("--dtypes", nargs="+", choices=DTYPES, help="default: all on cuda, float32 on cpu")
    add("--repository", type=Path, help="missing models are exported into it, by dtype (default: in .venv/bench)")
    add("--out", type=Path, help="JSON lines, appended to; the report is beside them (default: in benchmarks/results)")
    options = parser.parse_args(arguments)
    if options.provider == "cpu" and options.out and options.out.resolve().is_relative_to(RESULTS):
        parser.error("a trial is no result: choose an --out in another folder")
    options.dtypes = options.dtypes or (DTYPES if options.provider == "cuda" else DTYPES[:1])
    options.repository = (options.repository or CACHE / f"models-{options.provider}-{fingerprint()}").resolve()
    return options


def _default_file(provider: str, gpu: str) -> Path:
    folder = RESULTS if provider == "cuda" else CACHE
    return folder / f"{datetime.now(UTC):%Y-%m-%d}-{re.sub(r'[^a-z0-9]+', '-', gpu.lower())}.jsonl"


def _measure(part: str, options: Namespace, rows: Rows) -> None:
    """Append the rows of a part. A failure of the part as a whole, such as of the export, is a row, too."""
    try:
        for cell, row in PARTS[part](options, rows):
            rows.add(cell, **row)
            print(f"{cell}: {row.get('failed') or ('WRONG' if row['wrong'] else 'ok')}", file=sys.stderr)
        rows.add(part)
    except (OSError, RuntimeError) as error:
        rows.add(part, **failed(error))


if __name__ == "__main__":
    sys.exit(main())
