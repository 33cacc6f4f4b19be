"""``heed loadtest``: load on a server, measured from outside and, by its metrics, from inside."""

import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson
from rich.console import Console

from loadtest import options as flags
from loadtest.bodies import Body, bodies
from loadtest.connection import Request
from loadtest.crew import Crew
from loadtest.load import Turn
from loadtest.measure import Taken, Timing, take
from loadtest.outcome import Level, outcome, ratios
from loadtest.scenario import Ask, ScenarioError
from loadtest.server import Server, ServerError
from loadtest.signature import inputs
from loadtest.terminal import Live, ratio_table, table
from loadtest.thresholds import broken

WIDE = 160  # columns, of files and pipes
Taking = dict[tuple[Level, str], list[Taken]]


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
        made = _bodies(asked, servers, options.seed)
        try:
            _measure(options, servers, asked, made, taking, console)
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


def _bodies(asked: Sequence[Ask], servers: Sequence[Server], seed: int) -> list[list[Body]]:
    """Of each request asked; every server has answered each of them once."""
    rng = np.random.default_rng(seed)
    made = [bodies(ask, [] if ask.body else inputs(servers[0], ask.block), rng) for ask in asked]
    for server in servers:
        for ask, several in zip(asked, made, strict=True):
            for body in several:
                status, content = server.call(body.path, body.content, body.headers)
                if status != 200:
                    raise ServerError(
                        f"{server.url} answers {status} to {ask.title}: {content[:300].decode(errors='replace')}"
                    )
    return made


def _measure(
    options: Any,
    servers: Sequence[Server],
    asked: Sequence[Ask],
    made: Sequence[Sequence[Body]],
    taking: Taking,
    console: Console,
) -> None:
    """Level by level, in rounds; in every other round the servers come in the other order."""
    timing = Timing(options.window, options.seconds / options.rounds, options.patience)
    shares = [ask.share / len(several) for ask, several in zip(asked, made, strict=True) for _ in several]
    live = Live(console, options.seconds * len(options.levels) * len(servers))
    with Crew(options.processes) as crew, live.progress:
        for level in options.levels:
            for i in range(options.rounds):
                for server in servers[:: -1 if i % 2 else 1]:
                    turn = Turn(
                        server.host,
                        server.port,
                        server.tls,
                        [
                            Request(server.wire(body.path, body.content, body.headers), kind)
                            for kind, several in enumerate(made)
                            for body in several
                        ],
                        shares,
                        level.concurrency or options.connections,
                        level.rate,
                        options.timeout,
                        timing.tick,
                        options.seed + 1000 * i,
                    )
                    live.turn(f"{level} {server.url}", min(options.processes, turn.connections))
                    taken = take(crew, turn, server, timing, live.show)
                    taking[level, server.url].append(taken)
                    live.over(taken.rate)


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
        if (level, url) in taking
    ]
    compared = {
        str(level): ratios(*(taking[level, server.url] for server in servers))
        for level in options.levels
        if len(servers) == 2 and len({len(taking.get((level, server.url), [])) for server in servers}) == 1
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
