"""The report of JSON lines: gates, tables, plots, and the reasons for missing measurements."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import plots
from benchmarks.gpu.gates import best, gated_cells, gates, numeric, rate_ratio, ratio
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.time_attention import HEED
from benchmarks.report.gate import Gate
from benchmarks.report.markdown import table
from benchmarks.report.spread import spread_of
from export.verification import CANONICAL

TRIAL = "**A trial: {reasons}. It is not a result of Heed on a GPU.**\n"
ENGINE = """
Inputs [batch, heads, n, d] and outputs are on the device; median milliseconds of a call. *Device*: the time in which
the device was busy, measured by CUPTI for torch and ONNX Runtime alike. *Wall*: the time until the call had finished,
with the host's work. The ratio is of adjacent turns, by the device's time where it was measured. *Error*: the largest
error against float64 / the allowed one, which is twice torch's, plus one unit in the last place. *MiB*: device memory
that the first calls allocated."""
HTTP = """
Requests a second of {provider} and CPU in alternating turns under the same load: V2, float32, a closed loop, generated
on the same machine. A cell is encoding / outputs / batch x heads x n x d / connections. Both servers have one worker
and default settings; compute is the server's own metric."""


def render(file: Path) -> Path:
    """Write the report of the JSON lines in ``file``, and its plots, beside it; return its path."""
    rows = Rows(file)
    judged = list(gates(rows))
    plotted = plots.draw(rows, judged, file)
    into = file.with_suffix(".md")
    into.write_text("\n".join(_lines(rows, judged, plotted)) + "\n")
    return into


def _lines(rows: Rows, judged: Sequence[Gate], plotted: Sequence[Path]) -> Iterator[str]:
    yield from _head(rows)
    yield "\n## Gates\n\nRatios: median (smallest to largest) of the repeats.\n"
    yield from table(["", "cell", "result", "bound", ""], _gates(rows, judged))
    for plot in plotted:
        yield f"\n![{plot.stem.rpartition('-')[2]}]({plot.name})"
    if rows.part("numbers"):
        yield "\n## Numbers\n\nThe largest error / allowed error of each block, and where; above 1 is wrong.\n"
        yield from table(
            ["block", "dtype", "checks", "wrong", "worst", "where", "nodes of the canonical graph"], _numbers(rows)
        )
    if rows.part("engine"):
        yield f"\n## On the device\n{ENGINE}\n"
        heads = ["cell", "graph", "device ms", "torch's best", "ratio", "wall ms", "wall of best"]
        yield from table([*heads, "error", "MiB", "torch's MiB"], _engine(rows))
        if kernels := list(_kernels(rows)):
            yield "\nThe slowest kernels at the largest n:\n"
            yield from kernels
    if rows.part("http"):
        yield f"\n## Over HTTP\n{HTTP.format(provider=rows.runs[-1]['provider'].upper())}\n"
        heads = ["cell", "provider", "CPU", "ratio", "p50 ms", "CPU's", "p99 ms", "CPU's", "compute ms", "notes"]
        yield from table(heads, _http(rows))
    yield from _problems(rows)


def _head(rows: Rows) -> Iterator[str]:
    last = rows.runs[-1]
    yield f"# CUDA, {last['run'][:10]}\n"
    reasons = ["the CPU in place of a GPU"] * (last["provider"] == "cpu") + ["small sizes"] * last["quick"]
    if reasons:
        yield TRIAL.format(reasons=", ".join(reasons))
    yield "Machine: " + ", ".join(f"{name} {value}" for name, value in last["machine"].items()) + ".\n"
    yield "Versions: " + ", ".join(f"{name} {value}" for name, value in last["versions"].items()) + ".\n"
    for run in rows.runs:
        yield f"- {run['run']}, code {run['code']}: `{run['command']}`"


def _gates(rows: Rows, judged: Sequence[Gate]) -> Iterator[list[Any]]:
    for description, result, verdict in numeric(rows):
        yield [description, "", result, "none wrong", verdict]
    yield from (gate.row() for gate in judged)
    measured = {gate.cell for gate in judged}
    for cell in gated_cells(rows):
        if str(cell) not in measured:
            yield ["", cell, "", "", f"not measured{': it failed' * (str(cell) in rows.failed)}"]


def _numbers(rows: Rows) -> Iterator[list[Any]]:
    for row in rows.part("numbers").values():
        keys = ("block", "dtype", "checks", "wrong_count")
        yield [*(row[key] for key in keys), f"{row['worst']:.3g}", row["where"], row["nodes"][CANONICAL]]


def _engine(rows: Rows) -> Iterator[list[Any]]:
    for name, row in sorted(rows.part("engine").items(), key=lambda item: (item[0].split("/")[1:3], item[1]["n"])):
        other = best(row)
        device, wall, memory = row["device_ms"], row["wall_ms"], row["memory_mib"]
        theirs = device.get(other) or wall.get(other)
        errors = ", ".join(
            f"{key} {its / row['allowed'][key]:.2g}" for key, its in row["error"].items() if row["allowed"]
        )
        yield [
            name.removeprefix("engine/"), row["graph"], _median(device.get(HEED)),
            other and f"{other} {_median(theirs)}", ratio(row), _median(wall[HEED]), _median(wall.get(other)),
            errors, memory.get(HEED), memory.get(other),
        ]  # fmt: skip


def _kernels(rows: Rows) -> Iterator[str]:
    longest: dict[str, Mapping[str, Any]] = {}
    for name, row in rows.part("engine").items():
        kind = name.rpartition("/")[0]
        if row["kernels"] and row["n"] >= longest.get(kind, row)["n"]:
            longest[kind] = row
    for kind, row in longest.items():
        for name in (HEED, best(row)):
            kernels = ", ".join(f"`{kernel[:80]}`" for kernel in row["kernels"].get(name, []))
            yield f"- {kind.removeprefix('engine/')}, {name}: {kernels}"


def _http(rows: Rows) -> Iterator[list[Any]]:
    for name, row in rows.part("http").items():
        ours, cpu = row["provider"], row["cpu"]
        inside = ours["server_side"]
        yield [
            name.removeprefix("http/"), f"{ours['rate']:,.4g}", f"{cpu['rate']:,.4g}", rate_ratio(row),
            *(f"{result[key]:.3g}" for key in ("p50", "p99") for result in (ours, cpu)),
            inside and f"{inside['stages']['compute']['mean']:.3g}", "; ".join(ours["notes"]),
        ]  # fmt: skip


def _problems(rows: Rows) -> Iterator[str]:
    if rows.wrong:
        yield "\n## Wrong\n"
        yield from (f"- {name}: {problem}" for name, problems in rows.wrong.items() for problem in problems)
    cannot: dict[tuple[str, str], list[str]] = {}
    for name, row in rows.part("engine").items():
        for contender, reason in {**row["cannot"], "time on the device": row["no_device_clock"]}.items():
            if reason:
                cannot.setdefault((contender, reason), []).append(name.removeprefix("engine/"))
    if rows.failed or cannot:
        yield "\n## Not measured\n"
        yield from (f"- {name}: {' '.join(reason.split())}" for name, reason in rows.failed.items())
        yield from (f"- {contender}: {reason} ({', '.join(names)})" for (contender, reason), names in cannot.items())


def _median(numbers: Sequence[float] | None) -> str | None:
    return f"{spread.median:.4g}" if numbers and (spread := spread_of(numbers)) else None
