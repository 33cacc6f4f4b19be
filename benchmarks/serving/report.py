"""The report of JSON lines: ratios with their gates, as Markdown and plots."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report.gate import Gate
from benchmarks.report.markdown import table
from benchmarks.report.spread import Spread
from benchmarks.serving import plots
from benchmarks.serving.cell import Cell
from benchmarks.serving.gates import gates
from benchmarks.serving.results import Results
from benchmarks.serving.servers import IN_PROCESS
from benchmarks.serving.workloads import SIX

ABOUT = """
A cell is workload / format / connections. Formats: V2 JSON (for servers without V2, nested lists in a JSON object), V2
binary, and, for Heed's own blocks, V2 JSON (`block-json`) and native. Every output of the graph is returned. Servers
have two workers; Triton has the best of its settings in each cell. Baselines: `floor` is raw ASGI on uvicorn, which
reads the body and sends a prepared response; `in-process` is orjson, numpy, session, orjson without HTTP, in one
process for one connection and two for more.

**The load generator (wrk, one thread, closed loop) runs on the same cores as the servers.** Responses were compared
with ONNX Runtime's outputs before. All servers of a run are up at the same time and are loaded in turn. Latencies are
those that wrk measured, without the samples that it adds. † marks a rate that is too low, because fewer than three
requests per connection were answered and those cut off at the end of a turn do not count."""


def render(file: Path) -> Path:
    """Write the report of the JSON lines in ``file``, and its plots, beside it; return its path."""
    results = Results.read(file)
    judged = list(gates(results))
    plotted = plots.draw(results, judged, file)
    into = file.with_suffix(".md")
    into.write_text("\n".join(_lines(results, judged, plotted)) + "\n")
    return into


def _lines(results: Results, judged: Sequence[Gate], plotted: Sequence[Path]) -> Iterator[str]:
    yield from _head(results)
    yield "\n## Gates\n\nRatios of adjacent turns: median (smallest to largest) of the repeats.\n"
    yield from table(["", "cell", "ratio", "bound", ""], (gate.row() for gate in judged))
    for plot in plotted:
        yield f"\n![{plot.stem.rpartition('-')[2]}]({plot.name})"
    yield "\n## Heed's requests a second / each server's\n\nBold where Heed is slower than a server, not a baseline.\n"
    without_ids = [cell for cell in results.cells if cell.ids == "none"]
    others = [server for server in results.servers if server != "heed"]
    compared = [cell for cell in without_ids if any(results.ratio("heed", cell, other) for other in others)]
    rows = ([cell, *(_ratio(results, cell, other) for other in others)] for cell in compared)
    yield from table(["cell", *others], rows)
    yield "\n## Requests a second\n"
    rows = ([cell, *(_rate(results, cell, server) for server in results.servers)] for cell in without_ids)
    yield from table(["cell", *results.servers], rows)
    if results.settings:
        yield "\n## Triton's settings\n\nRequests a second by instances of a model x threads of each. Bold: the best.\n"
        settings = sorted({setting for setting, _ in results.settings})
        measured = [cell for cell in without_ids if cell in results.best]
        rows = ([cell, *(_setting(results, cell, name) for name in settings)] for cell in measured)
        yield from table(["cell", *settings], rows)
    if varied := [cell for cell in results.cells if cell.ids == "different"]:
        yield "\n## Rate with a new id in each request / with the same id in each\n"
        measured = [server for server in results.servers if any((server, cell) in results.turns for cell in varied)]
        rows = ([cell.without_id, *(_varied(results, cell, server) for server in measured)] for cell in varied)
        yield from table(["cell", *measured], rows)
    yield "\n## Latency and cost\n\nMedians; peak of resident memory, in which shared pages count in each process.\n"
    heads = ["server", "cell", "p50 ms", "p99 ms", "server CPU ms per request", "peak MiB", "errors"]
    yield from table(heads, _costs(results))
    if results.failed:
        yield "\n## Failed\n"
        yield from dict.fromkeys(f"- {row['server']} {_cell(row)}: {row['failed']}" for row in results.failed)


def _head(results: Results) -> Iterator[str]:
    last = results.runs[-1]
    yield f"# Serving, {last['run'][:10]}\n"
    yield "Machine: " + ", ".join(f"{name} {value}" for name, value in last["machine"].items()) + ".\n"
    yield "\n".join(f"- {workload.name}: {workload.description}" for workload in SIX.values())
    yield ABOUT
    turns = results.all()
    disturbed = sum(row.get("other_cores", 0) > last["quiet"] for row in turns)
    yield f"\n{disturbed} of {len(turns)} turns were disturbed: others used over {last['quiet']} cores, three times.\n"
    for run in results.runs:
        yield f"- {run['run']}: `{run['command']}`"
    for server, versions in last["versions"].items():
        yield f"- {server}: " + ", ".join(f"{name} {version}" for name, version in versions.items())


def _ratio(results: Results, cell: Cell, other: str) -> str:
    ratio = results.ratio("heed", cell, other)
    if ratio is None:
        return "no response in time" if (other, cell) in results.turns else ""
    is_baseline = other in (IN_PROCESS, "floor")
    text = f"**{ratio}**" if ratio.median < 1 and not is_baseline else str(ratio)
    return text + "†" * (results.is_rough("heed", cell) or results.is_rough(other, cell))


def _rate(results: Results, cell: Cell, server: str) -> str:
    rate = results.spread(server, cell)
    return f"{rate}{'†' * results.is_rough(server, cell)}" if rate else ""


def _setting(results: Results, cell: Cell, setting: str) -> str:
    rate = results.spread(setting, cell)
    return "" if rate is None else f"**{rate}**" if results.best[cell] == setting else str(rate)


def _varied(results: Results, cell: Cell, server: str) -> Spread | str:
    same = Cell(cell.workload, cell.format, cell.connections, "same")
    return results.ratio(server, cell, server, same) or ""


def _costs(results: Results) -> Iterator[list[Any]]:
    for cell in results.cells:
        for server in results.servers:
            rows = list(results.turns.get((server, cell), {}).values())
            if not rows:
                continue
            p50, p99 = (results.spread(server, cell, metric) for metric in ("p50_ms", "p99_ms"))
            cpu = results.spread(server, cell, "server_cpu_s", "requests")
            peak_bytes = max(row.get("rss_peak_bytes", 0) for row in rows)
            errors = sum(sum(row["errors"].values()) for row in rows)
            yield [
                server, cell, p50 and f"{p50.median:.3g}", p99 and f"{p99.median:.3g}",
                cpu and f"{1e3 * cpu.median:.3g}", round(peak_bytes / 2**20) or "", errors,
            ]  # fmt: skip


def _cell(row: dict[str, Any]) -> Cell:
    return Cell(row["workload"], row["format"], row["connections"], row["ids"])
