"""All turns: each level of load, on each server, in rounds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from loadtest.bodies import Body, bodies
from loadtest.connection import Request
from loadtest.crew import Crew
from loadtest.load import Turn
from loadtest.measure import Taken, Timing, take
from loadtest.outcome import Level
from loadtest.scenario import Ask
from loadtest.server import Server, ServerError
from loadtest.signature import inputs
from loadtest.terminal import Live

Taking = dict[tuple[Level, str], list[Taken]]


def bodies_of(asked: Sequence[Ask], servers: Sequence[Server], seed: int) -> list[list[Body]]:
    """Of each request asked; every server has answered each of them once.

    Raises:
        ServerError: one has not, or not with 200.
        ScenarioError: what is asked does not fit the model.
    """
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


def measure(
    options: Any,
    servers: Sequence[Server],
    asked: Sequence[Ask],
    made: Sequence[Sequence[Body]],
    taking: Taking,
    console: Console,
) -> None:
    """Level by level, in rounds, into ``taking``; in every other round the servers come in the other order."""
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
