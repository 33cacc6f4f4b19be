"""What must hold on a GPU, and whether it does."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu.cells import Engine, Http, engine, http
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.time_attention import GRAPHS, HEED
from benchmarks.serving.gates import Gate
from benchmarks.serving.results import Spread, spread_of
from models.catalogue import BLOCKS
from models.precision import DTYPES

TO_TORCH = 1.15
TO_CPU = 5.0
JUDGED = 2048  # positions, over HTTP


def gates(rows: Rows) -> Iterator[Gate]:
    """Those of time, as far as they were measured."""
    for cell in expected(rows):
        row = rows.of("engine" if isinstance(cell, Engine) else "http").get(str(cell))
        if row is None:
            continue
        if isinstance(cell, Http):
            yield Gate("rate against the CPU's", str(cell), of_rates(row), TO_CPU)
        elif found := ratio(row):
            yield Gate(f"time against torch's {best(row)}", str(cell), found, TO_TORCH, at_most=True)


def expected(rows: Rows) -> list[Engine | Http]:
    """What is judged: bfloat16 on the device, and binary outputs over HTTP; of a trial whatever it had."""
    quick = rows.runs[-1]["quick"]
    asked = rows.runs[-1]["dtypes"][:1] if quick or rows.runs[-1]["provider"] == "cpu" else ["bfloat16"]
    judged: list[Engine | Http] = [*engine(asked, quick)]
    for cell in http(quick):
        if (cell.encoding, cell.path) == ("binary", "output") and (quick or cell.n == JUDGED):
            judged.append(cell)
    return judged


def numeric(rows: Rows) -> Iterator[tuple[str, str, str]]:
    """What was asked of the numbers, what was found, and the verdict."""
    for dtype in DTYPES:
        of_dtype = [row for row in rows.of("numbers").values() if row["dtype"] == dtype]
        checks, wrong = (sum(row[what] for row in of_dtype) for what in ("checks", "wrong_count"))
        found = f"{checks:,} checks of {len(of_dtype)} blocks, {wrong:,} wrong" if of_dtype else ""
        yield f"{dtype} on the provider", found, _verdict(wrong, len(of_dtype), len(BLOCKS), "blocks")
    ran = rows.of("tests").values()
    wrong = sum(len(row["wrong"]) for row in ran)
    found = f"{sum(row['tests'] for row in ran)} tests, {wrong} failed" if ran else ""
    yield "the numeric tests over HTTP", found, _verdict(wrong, len(ran), 1 if rows.runs[-1]["quick"] else 2, "files")


def best(row: Mapping[str, Any]) -> str | None:
    """torch's kernel of the least median; None where none ran."""
    took = times(row)
    medians = {name: spread_of(of) for name, of in took.items() if name not in (HEED, GRAPHS)}
    return min(medians, key=lambda name: medians[name].median, default=None)


def ratio(row: Mapping[str, Any]) -> Spread | None:
    """Heed's time over that of torch's best, of turns next to each other."""
    took, other = times(row), best(row)
    return spread_of(mine / its for mine, its in zip(took[HEED], took[other], strict=True)) if other else None


def times(row: Mapping[str, Any]) -> Mapping[str, list[float]]:
    """Milliseconds of each contender: on the device, or where that has no clock, by the wall."""
    return row["device_ms"] or row["wall_ms"]


def of_rates(row: Mapping[str, Any]) -> Spread:
    found = row["ratio"]
    return Spread(found["median"], found["low"], found["high"], row["rounds"])


def _verdict(wrong: int, measured: int, of: int, what: str) -> str:
    if wrong:
        return "**not met**"
    return "met" if measured == of else f"not measured in full: {measured} of {of} {what}"
