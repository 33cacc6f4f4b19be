"""The report of JSON lines: gates, numbers, times, and the reasons for missing measurements."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.attention import KINDS, cell_name
from benchmarks.gpu.rows import Row, Rows
from benchmarks.report.gate import Gate
from benchmarks.report.markdown import table
from benchmarks.report.spread import Spread, spread_of
from models.catalogue import BLOCKS
from models.precision import DTYPES

TO_TORCH = 1.15  # largest allowed ratio to torch's time
GATED = "bfloat16"
ABOUT = """
## Numbers and times

*Worst*: the largest error / the allowed one, and where; above 1 is wrong. *ms*: the time in which a call keeps the
device busy, measured by CUPTI for ONNX Runtime and torch alike; batch 8, 16 heads, d 64, all tensors on the device.
Ratios are of adjacent turns: median (smallest to largest).
"""


def render(rows: Rows) -> Path:
    """Write the report of the JSON lines beside them; return its path."""
    into = rows.file.with_suffix(".md")
    into.write_text("\n".join(_lines(rows)) + "\n")
    return into


def _lines(rows: Rows) -> Iterator[str]:
    last = rows.runs[-1]
    yield f"# CUDA, {last['run'][:10]}\n"
    if last["provider"] == "cpu":
        yield "**A trial on the CPU. It is not a result of Heed on a GPU.**\n"
    for about in ("machine", "versions"):
        yield f"{about.capitalize()}: {', '.join(f'{name} {value}' for name, value in last[about].items())}.\n"
    yield from (f"- {run['run']}: `{run['command']}`" for run in rows.runs)
    yield "\n## Gates\n"
    yield from table(["", "cell", "result", "bound", ""], [*_numeric_gates(rows), *_time_gates(rows)])
    yield ABOUT
    numbers, attention = (rows.part(part).items() for part in ("numbers", "attention"))
    columns = ("checks", "wrong_count", "worst", "where", "nodes")
    yield from table(["cell", *columns], ([name, *map(row.__getitem__, columns)] for name, row in numbers))
    yield ""
    yield from table(["cell", "graph", "ms", "torch's ms", "ratio", "error / allowed"], map(_times, attention))
    yield "\n## Wrong or not measured\n"
    yield from (f"- {name}: {problem}" for name, problems in rows.wrong.items() for problem in problems)
    yield from (f"- {name}: {' '.join(reason.split())}" for name, reason in rows.failed.items())


def _numeric_gates(rows: Rows) -> Iterator[list[Any]]:
    for dtype in DTYPES:
        measured = [row for row in rows.part("numbers").values() if row["dtype"] == dtype]
        checks, wrong = (sum(row[key] for row in measured) for key in ("checks", "wrong_count"))
        verdict = f"not measured in full: {len(measured)} of {len(BLOCKS)} blocks"
        verdict = "**not met**" if wrong else "met" if len(measured) == len(BLOCKS) else verdict
        yield [f"numbers in {dtype}", "", f"{checks:,} checks, {wrong:,} wrong", "none wrong", verdict]


def _time_gates(rows: Rows) -> Iterator[list[Any]]:
    measured = rows.part("attention")
    for name in (cell_name(kind, GATED, n) for kind, lengths in KINDS.items() for n in lengths):
        if name in measured:
            yield Gate("time against torch's", name, _ratio(measured[name]), TO_TORCH, at_most=True).row()
        else:
            yield ["time against torch's", name, "", "", "not measured"]


def _times(item: tuple[str, Row]) -> list[Any]:
    name, row = item
    medians = (f"{spread_of(row['ms'][contender]).median:.4g}" for contender in ("heed", "torch"))
    errors = ", ".join(f"{output} {share:.2g}" for output, share in row["error"].items())
    return [name, row["graph"], *medians, _ratio(row), errors]


def _ratio(row: Row) -> Spread:
    """Heed's time / torch's, in adjacent turns."""
    return spread_of(ours / theirs for ours, theirs in zip(row["ms"]["heed"], row["ms"]["torch"], strict=True))
