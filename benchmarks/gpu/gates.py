"""The gates on a GPU, and whether they are met."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu.cells import Engine, Http, engine, http
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.time_attention import HEED
from benchmarks.report.gate import Gate
from benchmarks.report.spread import Spread, spread_of
from models.catalogue import BLOCKS
from models.precision import DTYPES

TO_TORCH = 1.15
TO_CPU = 5.0
HTTP_LENGTH = 2048  # positions, of the gates over HTTP


def gates(rows: Rows) -> Iterator[Gate]:
    """The gates of time whose cells were measured."""
    for cell in gated_cells(rows):
        row = rows.part("engine" if isinstance(cell, Engine) else "http").get(str(cell))
        if row is None:
            continue
        if isinstance(cell, Http):
            yield Gate("rate against the CPU's", str(cell), rate_ratio(row), TO_CPU)
        elif time_ratio := ratio(row):
            yield Gate(f"time against torch's {best(row)}", str(cell), time_ratio, TO_TORCH, at_most=True)


def gated_cells(rows: Rows) -> list[Engine | Http]:
    """The cells with gates: bfloat16 on the device, and binary outputs over HTTP. In a trial: those measured."""
    quick = rows.runs[-1]["quick"]
    dtypes = rows.runs[-1]["dtypes"][:1] if quick or rows.runs[-1]["provider"] == "cpu" else ["bfloat16"]
    cells: list[Engine | Http] = [*engine(dtypes, quick)]
    for cell in http(quick):
        if (cell.encoding, cell.path) == ("binary", "output") and (quick or cell.n == HTTP_LENGTH):
            cells.append(cell)
    return cells


def numeric(rows: Rows) -> Iterator[tuple[str, str, str]]:
    """Description, result and verdict of each group of numeric checks."""
    for dtype in DTYPES:
        of_dtype = [row for row in rows.part("numbers").values() if row["dtype"] == dtype]
        checks, wrong = (sum(row[key] for row in of_dtype) for key in ("checks", "wrong_count"))
        result = f"{checks:,} checks of {len(of_dtype)} blocks, {wrong:,} wrong" if of_dtype else ""
        yield f"{dtype} on the provider", result, _verdict(wrong, len(of_dtype), len(BLOCKS), "blocks")
    files = rows.part("tests").values()
    wrong = sum(len(row["wrong"]) for row in files)
    result = f"{sum(row['tests'] for row in files)} tests, {wrong} failed" if files else ""
    file_count = 1 if rows.runs[-1]["quick"] else 2
    yield "the numeric tests over HTTP", result, _verdict(wrong, len(files), file_count, "files")


def best(row: Mapping[str, Any]) -> str | None:
    """The name of torch's fastest kernel by median; None if none ran."""
    medians = {name: spread_of(times_ms) for name, times_ms in times(row).items() if name != HEED}
    return min(medians, key=lambda name: medians[name].median, default=None)


def ratio(row: Mapping[str, Any]) -> Spread | None:
    """Heed's time / the time of torch's fastest kernel, in adjacent turns."""
    times_ms, other = times(row), best(row)
    return spread_of(ours / its for ours, its in zip(times_ms[HEED], times_ms[other], strict=True)) if other else None


def times(row: Mapping[str, Any]) -> Mapping[str, list[float]]:
    """Milliseconds of each contender: on the device, or by the wall clock if the device has no profiler."""
    return row["device_ms"] or row["wall_ms"]


def rate_ratio(row: Mapping[str, Any]) -> Spread:
    return Spread(*(row["ratio"][key] for key in ("median", "low", "high")), row["rounds"])


def _verdict(wrong: int, measured: int, total: int, unit: str) -> str:
    if wrong:
        return "**not met**"
    return "met" if measured == total else f"not measured in full: {measured} of {total} {unit}"
