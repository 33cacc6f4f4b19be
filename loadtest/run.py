"""All turns of a load test: each level of load, on each server, in rounds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from loadtest.bodies import Body, bodies
from loadtest.connection import Request
from loadtest.load import Turn
from loadtest.measure import Measurement, Timing, measure_turn
from loadtest.outcome import Level
from loadtest.pool import WorkerPool
from loadtest.scenario import RequestSpec
from loadtest.server import Server, StatusError
from loadtest.signature import inputs
from loadtest.terminal import Display

Measurements = dict[tuple[Level, str], list[Measurement]]  # by level and URL


def build_bodies(specs: Sequence[RequestSpec], servers: Sequence[Server], seed: int) -> list[list[Body]]:
    """The bodies of each request; each body is sent to each server once.

    Raises:
        ServerError: a server does not respond with status 200.
        ScenarioError: a request does not fit its model.
    """
    rng = np.random.default_rng(seed)
    all_bodies = [bodies(spec, [] if spec.body else inputs(servers[0], spec.block), rng) for spec in specs]
    for server in servers:
        for spec, spec_bodies in zip(specs, all_bodies, strict=True):
            for body in spec_bodies:
                status, content = server.call(body.path, body.content, body.headers)
                if status != 200:
                    raise StatusError(server.url, spec.title, status, content)
    return all_bodies


def measure(
    options: Any,
    servers: Sequence[Server],
    specs: Sequence[RequestSpec],
    all_bodies: Sequence[Sequence[Body]],
    measurements: Measurements,
    console: Console,
) -> None:
    """Measure level by level, in rounds, into ``measurements``; every other round reverses the order of the servers."""
    timing = Timing(options.window, options.seconds / options.rounds, options.max_warmup)
    shares = [spec.share / len(several) for spec, several in zip(specs, all_bodies, strict=True) for _ in several]
    display = Display(console, options.seconds * len(options.levels) * len(servers))
    with WorkerPool(options.processes) as pool, display.progress:
        for level in options.levels:
            for i in range(options.rounds):
                for server in servers[:: -1 if i % 2 else 1]:
                    turn = Turn(
                        server.host,
                        server.port,
                        server.tls,
                        [
                            Request(server.wire(body.path, body.content, body.headers), kind)
                            for kind, several in enumerate(all_bodies)
                            for body in several
                        ],
                        shares,
                        level.concurrency or options.connections,
                        level.rate,
                        options.timeout,
                        timing.sample_s,
                        options.seed + 1000 * i,
                    )
                    display.begin_turn(f"{level} {server.url}", min(options.processes, turn.connections))
                    measurement = measure_turn(pool, turn, server, timing, display.update)
                    measurements[level, server.url].append(measurement)
                    display.end_turn(measurement.rate)
