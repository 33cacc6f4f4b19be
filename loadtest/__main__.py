"""``heed loadtest``: load on a server, measured from outside and, by its metrics, from inside."""

import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from rich.console import Console

from loadtest import options as flags
from loadtest.bodies import Body
from loadtest.outcome import outcome, ratios
from loadtest.run import Taking, bodies_of, measure
from loadtest.scenario import Ask, ScenarioError
from loadtest.server import Server
from loadtest.terminal import ratio_table, table
from loadtest.thresholds import broken

WIDE = 160  # columns, of files and pipes


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every level, show and write what came of it; answers the exit status."""
    options, asked = flags.parse(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    taking: Taking = defaultdict(list)
    status = 0
    try:
        for file in filter(None, (options.report, options.json)):
            file.touch()
        urls = dict.fromkeys(url.rstrip("/") for url in (options.url, options.compare) if url)
        if options.compare and len(urls) < 2:
            raise ScenarioError("--compare: expected another server")
        servers = [Server(url, dict(options.header)) for url in urls]
        made = bodies_of(asked, servers, options.seed)
        try:
            measure(options, servers, asked, made, taking, console)
        except KeyboardInterrupt:
            console.print("interrupted; what was measured follows")
            status = 130
    except KeyboardInterrupt:
        return 130
    except (OSError, RuntimeError, ScenarioError) as error:
        print(f"heed loadtest: {error}", file=sys.stderr)
        return 2
    document = _document(options, servers, asked, made, taking)
    if not document["results"]:
        return status or 2
    _tell(document, options, console)
    for line in document["broken"]:
        console.print(f"[red]failed:[/] {line}", soft_wrap=True)
    return status or int(bool(document["broken"]))


def _document(
    options: Any, servers: Sequence[Server], asked: Sequence[Ask], made: Sequence[Sequence[Body]], taking: Taking
) -> dict[str, Any]:
    """Everything, as the JSON file has it."""
    titles = [ask.title for ask in asked]
    named = dict(zip("AB", (server.url for server in servers), strict=False))
    results = [
        outcome(level, name, titles, taking[level, url])
        for level in options.levels
        for name, url in named.items()
        if taking[level, url]
    ]
    compared = {
        str(level): ratios(*(taking[level, server.url] for server in servers))
        for level in options.levels
        if len(servers) == 2 and {len(taking[level, server.url]) for server in servers} == {options.rounds}
    }
    first = [result for result in results if result["server"] == "A"]
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "servers": named,
        "requests": [
            {"name": ask.title, "share": ask.share / sum(each.share for each in asked), "path": several[0].path}
            | {"bodies": len(several), "bytes": sum(len(body.content) for body in several) // len(several)}
            for ask, several in zip(asked, made, strict=True)
        ],
        "seconds": options.seconds,
        "rounds": options.rounds,
        "results": results,
        "ratios": compared,
        "thresholds": [threshold.text for threshold in options.fail_if],
        "broken": broken(options.fail_if, first, compared),
    }


def _tell(document: dict[str, Any], options: Any, console: Console) -> None:
    """The summary, and the files asked for."""
    several = len(document["servers"]) > 1
    for name, url in document["servers"].items():
        console.print(f"{name} {url}" if several else url)
    console.print(table(document["results"], several))
    if document["ratios"]:
        console.print("\nA over B, in turns next to each other: median, and least to most")
        console.print(ratio_table(document["ratios"]))
    for result in document["results"]:
        where = f"{result['level']}, {result['server']}" if several else result["level"]
        for note in result["notes"]:
            console.print(f"[yellow]{where}:[/] {note}", soft_wrap=True)
        for error, count in result["errors"].items():
            console.print(f"[red]{where}:[/] {count:,} times {error}", soft_wrap=True)
    if options.json:
        options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    if options.report:
        from loadtest.report import render  # plots take a second to import

        options.report.write_text(render(document))
        console.print(f"report: {options.report}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
