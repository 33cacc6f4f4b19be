"""``heed loadtest``: load on a server, measured at the client and by the server's own metrics."""

import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import orjson
from rich.console import Console

from heed_options import clean_end
from loadtest import options as flags
from loadtest.measurement.outcome import is_answered, outcome, ratios
from loadtest.measurement.thresholds import violations
from loadtest.options import parser
from loadtest.report import about, ci
from loadtest.report.terminal import ratio_table, table, token_table
from loadtest.requests.memory import stored_keys
from loadtest.requests.scenario import RequestSpec, ScenarioError
from loadtest.requests.server import Server
from loadtest.run import Measurements, Side, build_sides, measure

__all__ = ["main", "parser"]

FILE_COLUMNS = 160  # width of the output in files and pipes


@clean_end
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every level, print and write the results; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options, specs = flags.parse(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else FILE_COLUMNS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs the cleanup of context managers
    measurements: Measurements = defaultdict(list)
    status = 0
    try:
        for file in filter(None, (options.report, options.json, options.csv, options.junit)):
            file.touch()  # an error before the measurement, not after
        urls = dict.fromkeys(url.rstrip("/") for url in (options.url, options.compare) if url)
        if options.compare and len(urls) < 2:
            raise ScenarioError("--compare: expected another server")
        servers = [Server(url, dict(options.header), options.trust) for url in urls]
        with stored_keys(servers[0]) if options.memory else nullcontext() as store:
            sides = build_sides(specs, servers, options.seed, store)
            details = [about.about(side.server) for side in sides]
            try:
                measure(options, sides, specs, measurements, console)
            except KeyboardInterrupt:
                console.print("interrupted; results so far:")
                status = 130
    except KeyboardInterrupt:
        return 130
    except (OSError, RuntimeError, ScenarioError) as error:
        print(f"heed loadtest: {error}", file=sys.stderr)
        if options.junit and options.junit.exists():
            options.junit.write_text(ci.failure_to_junit(options.url, str(error)))
        return 2
    document = _document(options, sides, specs, measurements) | {
        "command": about.command(arguments, "" if options.url_is_given else options.url, options.header),
        "load_generator": about.machine(),
        "server_details": dict(zip("AB", details, strict=False)),
    }
    if not document["results"]:
        return status or 2
    _output(document, options, console)
    unanswered = [result for result in document["results"] if not is_answered(result)]
    for result in unanswered:
        url = document["servers"][result["server"]]
        print(f"heed loadtest: {result['level']}: {url} answered no request with 200", file=sys.stderr)
    answered = {result["server"] for result in document["results"] if is_answered(result)}
    if {result["server"] for result in unanswered} - answered:
        return status or 2
    return status or int(bool(unanswered or document["violations"]))


def _document(
    options: Any,
    sides: Sequence[Side],
    specs: Sequence[RequestSpec],
    measurements: Measurements,
) -> dict[str, Any]:
    """The content of the JSON file."""
    titles = [spec.title for spec in specs]
    names = dict(zip("AB", (side.title for side in sides), strict=False))
    results = [
        outcome(level, name, titles, measurements[level, title])
        for level in options.levels
        for name, title in names.items()
        if measurements[level, title]
    ]
    level_ratios = {
        str(level): ratios(*(measurements[level, side.title] for side in sides))
        for level in options.levels
        if len(sides) == 2 and {len(measurements[level, side.title]) for side in sides} == {options.rounds}
    }
    of_first = [result for result in results if result["server"] == "A"]
    total_share = sum(spec.share for spec in specs)
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "servers": names,
        "requests": [
            {"name": spec.title, "share": spec.share / total_share, "path": several[0].path}
            | {"bodies": len(several), "bytes": sum(len(body.content) for body in several) // len(several)}
            | {"shapes": [body.shapes for body in several if body.shapes]}
            for spec, several in zip(specs, sides[0].bodies, strict=True)
        ],
        "seconds": options.seconds,
        "rounds": options.rounds,
        "results": results,
        "ratios": level_ratios,
        "thresholds": [threshold.text for threshold in options.fail_if],
        "violations": violations(options.fail_if, of_first, level_ratios),
    }


def _output(document: dict[str, Any], options: Any, console: Console) -> None:
    """Print the summary; write the JSON file and the report."""
    several = len(document["servers"]) > 1
    for name, url in document["servers"].items():
        console.print(f"{name} {url}" if several else url)
    console.print(table(document["results"], several))
    if any(result["generation"] for result in document["results"]):
        console.print("\ngenerated tokens: the time until the first, and of each further one")
        console.print(token_table(document["results"], several))
    if document["ratios"]:
        console.print("\nA / B, ratios of adjacent turns: median (smallest to largest)")
        console.print(ratio_table(document["ratios"]))
    for result in document["results"]:
        title = f"{result['level']}, {result['server']}" if several else result["level"]
        for note in result["notes"]:
            console.print(f"[yellow]{title}:[/] {note}", soft_wrap=True)
        for error, count in result["errors"].items():
            console.print(f"[red]{title}:[/] {error}: {count:,}", soft_wrap=True)
    if options.json:
        options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    if options.csv:
        options.csv.write_text(ci.to_csv(document))
    if options.junit:
        options.junit.write_text(ci.to_junit(document))
    if options.report:
        from loadtest.report.page import render  # importing plotly takes a second

        options.report.write_text(render(document))
        console.print(f"report: {options.report}", soft_wrap=True)
    for line in document["violations"]:
        console.print(f"[red]failed:[/] {line}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
