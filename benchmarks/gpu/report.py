"""The report of JSON lines: what must hold, tables, plots, and what could not be measured."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import plots
from benchmarks.gpu.gates import best, expected, gates, numeric, of_rates, ratio
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.time_attention import GRAPHS, HEED
from benchmarks.serving.gates import Gate
from benchmarks.serving.report import table
from benchmarks.serving.results import spread_of
from export.verification import CANONICAL

TRIAL = "**A trial: {why}. Nothing here says anything of Heed on a GPU.**\n"
ENGINE = """
Queries, keys and values [batch, heads, n, d] on the device, outputs left there; milliseconds a call, medians. *Device*:
the time in which the device was at work for it, as CUPTI saw, for torch and ONNX Runtime alike. *Wall*: until it was
done, the host's work in it. The ratio, of turns next to each other, is of the former where there is one. *Error*: the
largest against float64, over what is allowed: twice torch's own, and one unit in the last place. *MiB*: what the device
had less of after the first calls."""
HTTP = """
Requests a second, {provider} and CPU taking turns under the same load: V2, float32, a closed loop, made by this machine
too. A cell is encoding / outputs / batch x heads x n x d / connections. Both servers have one worker and settings as
they come; compute is the server's own measure."""


def render(file: Path) -> Path:
    """Write the report of the JSON lines ``file`` and its plots beside it; answers its path."""
    rows = Rows(file)
    judged = list(gates(rows))
    plotted = plots.draw(rows, judged, file)
    into = file.with_suffix(".md")
    into.write_text("\n".join(_lines(rows, judged, plotted)) + "\n")
    return into


def _lines(rows: Rows, judged: Sequence[Gate], plotted: Sequence[Path]) -> Iterator[str]:
    yield from _head(rows)
    yield "\n## What must hold\n\nRatios: median (smallest to largest) of the repeats.\n"
    yield from table(["", "cell", "found", "must be", ""], _gates(rows, judged))
    for each in plotted:
        yield f"\n![{each.stem.rpartition('-')[2]}]({each.name})"
    if rows.of("numbers"):
        yield "\n## Numbers\n\nThe worst error of each block over what is allowed, and where; above 1 is wrong.\n"
        yield from table(
            ["block", "dtype", "checks", "wrong", "worst", "where", "nodes of the canonical graph"], _numbers(rows)
        )
    if rows.of("engine"):
        yield f"\n## On the device\n{ENGINE}\n"
        heads = ["cell", "graph", "device ms", "torch's best", "ratio", "wall ms", "wall of best", "with CUDA graphs"]
        yield from table([*heads, "error", "MiB", "torch's MiB"], _engine(rows))
        if kernels := list(_kernels(rows)):
            yield "\nKernels that took longest, at the longest n measured:\n"
            yield from kernels
    if rows.of("http"):
        yield f"\n## Over HTTP\n{HTTP.format(provider=rows.runs[-1]['provider'].upper())}\n"
        heads = ["cell", "provider", "CPU", "ratio", "p50 ms", "CPU's", "p99 ms", "CPU's", "compute ms", "notes"]
        yield from table(heads, _http(rows))
    yield from _trouble(rows)


def _head(rows: Rows) -> Iterator[str]:
    last = rows.runs[-1]
    yield f"# CUDA, {last['run'][:10]}\n"
    why = ["the CPU in place of a GPU"] * (last["provider"] == "cpu") + ["small sizes"] * last["quick"]
    if why:
        yield TRIAL.format(why=", ".join(why))
    yield "Machine: " + ", ".join(f"{name} {value}" for name, value in last["machine"].items()) + ".\n"
    yield "Versions: " + ", ".join(f"{name} {value}" for name, value in last["versions"].items()) + ".\n"
    for run in rows.runs:
        yield f"- {run['run']}, code {run['code']}: `{run['command']}`"


def _gates(rows: Rows, judged: Sequence[Gate]) -> Iterator[list[Any]]:
    for what, found, verdict in numeric(rows):
        yield [what, "", found, "none wrong", verdict]
    for gate in judged:
        yield [gate.what, gate.cell, gate.ratio, ("≤ " if gate.at_most else "≥ ") + f"{gate.bound:g}", gate.verdict]
    there = {gate.cell for gate in judged}
    for cell in expected(rows):
        if str(cell) not in there:
            yield ["", cell, "", "", f"not measured{': it failed' * (str(cell) in rows.failed)}"]


def _numbers(rows: Rows) -> Iterator[list[Any]]:
    for row in rows.of("numbers").values():
        told = row["checks"], row["wrong_count"], f"{row['worst']:.3g}", row["where"], row["nodes"][CANONICAL]
        yield [row["block"], row["dtype"], *told]


def _engine(rows: Rows) -> Iterator[list[Any]]:
    for name, row in sorted(rows.of("engine").items(), key=lambda item: (item[0].split("/")[1:3], item[1]["n"])):
        other = best(row)
        device, wall, memory = row["device_ms"], row["wall_ms"], row["memory_mib"]
        theirs = device.get(other) or wall.get(other)
        errors = ", ".join(f"{of} {its / row['allowed'][of]:.2g}" for of, its in row["error"].items() if row["allowed"])
        yield [
            name.removeprefix("engine/"), row["graph"], _median(device.get(HEED)),
            other and f"{other} {_median(theirs)}", ratio(row), _median(wall[HEED]), _median(wall.get(other)),
            _median(wall.get(GRAPHS)), errors, memory.get(HEED), memory.get(other),
        ]  # fmt: skip


def _kernels(rows: Rows) -> Iterator[str]:
    longest: dict[str, Mapping[str, Any]] = {}
    for name, row in rows.of("engine").items():
        kind = name.rpartition("/")[0]
        if row["kernels"] and row["n"] >= longest.get(kind, row)["n"]:
            longest[kind] = row
    for kind, row in longest.items():
        for who in (HEED, best(row)):
            yield f"- {kind.removeprefix('engine/')}, {who}: " + ", ".join(
                f"`{of[:80]}`" for of in row["kernels"].get(who, [])
            )


def _http(rows: Rows) -> Iterator[list[Any]]:
    for name, row in rows.of("http").items():
        ours, cpu = row["provider"], row["cpu"]
        inside = ours["server_side"]
        yield [
            name.removeprefix("http/"), f"{ours['rate']:,.4g}", f"{cpu['rate']:,.4g}", of_rates(row),
            *(f"{of[what]:.3g}" for what in ("p50", "p99") for of in (ours, cpu)),
            inside and f"{inside['stages']['compute']['mean']:.3g}", "; ".join(ours["notes"]),
        ]  # fmt: skip


def _trouble(rows: Rows) -> Iterator[str]:
    if rows.wrong:
        yield "\n## Wrong\n"
        yield from (f"- {name}: {each}" for name, several in rows.wrong.items() for each in several)
    cannot: dict[tuple[str, str], list[str]] = {}
    for name, row in rows.of("engine").items():
        for who, why in {**row["cannot"], "time on the device": row["no_device_clock"]}.items():
            if why:
                cannot.setdefault((who, why), []).append(name.removeprefix("engine/"))
    if rows.failed or cannot:
        yield "\n## What could not be measured, and why\n"
        yield from (f"- {name}: {' '.join(why.split())}" for name, why in rows.failed.items())
        yield from (f"- {who}: {why} ({', '.join(names)})" for (who, why), names in cannot.items())


def _median(numbers: Sequence[float] | None) -> str | None:
    return f"{found.median:.4g}" if numbers and (found := spread_of(numbers)) else None
