"""The report of JSON lines: ratios beside what they must hold, Markdown and plots."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving import plots
from benchmarks.serving.cell import Cell
from benchmarks.serving.gates import Gate, gates
from benchmarks.serving.results import Results, Spread
from benchmarks.serving.servers import IN_PROCESS
from benchmarks.serving.workloads import WORKLOADS

ABOUT = """
A cell is workload / face / connections. Faces: V2 JSON (for servers without V2, nested lists in a JSON object), V2
binary, and, of Heed's own blocks, V2 JSON (`block-json`) and native. Every output of the graph is answered. Servers
have two workers. Yardsticks: `floor` is raw ASGI on uvicorn that reads the body and answers canned bytes; `in-process`
is orjson, numpy, session, orjson, no HTTP, one process for one connection, two for more.

**The load generator (wrk, one thread, closed loop) runs on the cores the servers run on.** Answers were compared with
ONNX Runtime's before measuring. All servers of a run are up at the same time and take turns. Latencies are those wrk
timed, without the samples it adds. † is a rough number, too low: less than three requests a connection were answered,
and those that the end of a turn cuts off do not count."""


def render(file: Path) -> Path:
    """Write the report of the JSON lines ``file`` and its plots beside it; answers its path."""
    results = Results.read(file)
    judged = list(gates(results))
    plotted = plots.draw(results, judged, file)
    into = file.with_suffix(".md")
    into.write_text("\n".join(_lines(results, judged, plotted)) + "\n")
    return into


def _lines(results: Results, judged: Sequence[Gate], plotted: Sequence[Path]) -> Iterator[str]:
    yield from _head(results)
    yield "\n## What must hold\n\nRatios of turns next to each other: median (smallest to largest) of the repeats.\n"
    rows = ([of.what, of.cell, of.ratio, ("≤ " if of.at_most else "≥ ") + f"{of.bound:g}", of.verdict] for of in judged)
    yield from table(["", "cell", "ratio", "must be", ""], rows)
    for each in plotted:
        yield f"\n![{each.stem.rpartition('-')[2]}]({each.name})"
    yield "\n## Heed's requests a second over each server's\n\nBold where Heed is behind a server (yardsticks aside).\n"
    plain = [cell for cell in results.cells if cell.ids == "none"]
    others = [server for server in results.servers if server != "heed"]
    beside = [cell for cell in plain if any(results.ratio("heed", cell, other) for other in others)]
    rows = ([cell, *(_beside(results, cell, other) for other in others)] for cell in beside)
    yield from table(["cell", *others], rows)
    yield "\n## Requests a second\n"
    rows = ([cell, *(_rate(results, cell, server) for server in results.servers)] for cell in plain)
    yield from table(["cell", *results.servers], rows)
    if varied := [cell for cell in results.cells if cell.ids == "different"]:
        yield "\n## Another id in each request, over the same id in each\n"
        there = [server for server in results.servers if any((server, cell) in results.turns for cell in varied)]
        rows = ([cell.without_id, *(_varied(results, cell, server) for server in there)] for cell in varied)
        yield from table(["cell", *there], rows)
    yield "\n## What it cost\n\nMedians; the largest of resident memory, in which shared pages count in each process.\n"
    heads = ["server", "cell", "p50 ms", "p99 ms", "server CPU ms a request", "peak MiB", "errors"]
    yield from table(heads, _costs(results))
    if results.failed:
        yield "\n## Failed\n"
        yield from dict.fromkeys(f"- {of['server']} {_cell(of)}: {of['failed']}" for of in results.failed)


def _head(results: Results) -> Iterator[str]:
    last = results.runs[-1]
    yield f"# Serving, {last['run'][:10]}\n"
    yield "Machine: " + ", ".join(f"{name} {value}" for name, value in last["machine"].items()) + ".\n"
    yield "\n".join(f"- {of.name}: {of.what}" for of in WORKLOADS.values())
    yield ABOUT
    turns = results.all()
    loud = sum(row.get("other_cores", 0) > last["quiet"] for row in turns)
    yield f"\n{loud} of {len(turns)} turns were disturbed: others used over {last['quiet']} cores, in three tries.\n"
    for run in results.runs:
        yield f"- {run['run']}: `{run['command']}`"
    for server, versions in last["versions"].items():
        yield f"- {server}: " + ", ".join(f"{name} {version}" for name, version in versions.items())


def _beside(results: Results, cell: Cell, other: str) -> str:
    found = results.ratio("heed", cell, other)
    if found is None:
        return "none answered in time" if (other, cell) in results.turns else ""
    yardstick = other in (IN_PROCESS, "floor")
    text = f"**{found}**" if found.median < 1 and not yardstick else str(found)
    return text + "†" * (results.rough("heed", cell) or results.rough(other, cell))


def _rate(results: Results, cell: Cell, server: str) -> str:
    found = results.spread(server, cell)
    return f"{found}{'†' * results.rough(server, cell)}" if found else ""


def _varied(results: Results, cell: Cell, server: str) -> Spread | str:
    same = Cell(cell.workload, cell.face, cell.connections, "same")
    return results.ratio(server, cell, server, same) or ""


def _costs(results: Results) -> Iterator[list[Any]]:
    for cell in results.cells:
        for server in results.servers:
            rows = list(results.turns.get((server, cell), {}).values())
            if not rows:
                continue
            p50, p99 = (results.spread(server, cell, what) for what in ("p50_ms", "p99_ms"))
            cpu = results.spread(server, cell, "server_cpu_s", "requests")
            peak = max(row.get("rss_peak_bytes", 0) for row in rows)
            errors = sum(sum(row["errors"].values()) for row in rows)
            yield [
                server, cell, p50 and f"{p50.median:.3g}", p99 and f"{p99.median:.3g}",
                cpu and f"{1e3 * cpu.median:.3g}", round(peak / 2**20) or "", errors,
            ]  # fmt: skip


def _cell(row: dict[str, Any]) -> Cell:
    return Cell(row["workload"], row["face"], row["connections"], row["ids"])


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Its lines in Markdown; None is an empty cell."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        yield f"| {' | '.join('' if each is None else str(each) for each in row)} |"
