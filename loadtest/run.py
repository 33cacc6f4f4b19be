"""All turns of a load test: each level of load, on each server, in rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from loadtest.generator.connection import Request
from loadtest.generator.load import Turn
from loadtest.generator.pool import WorkerPool
from loadtest.measurement.measure import MEASURED_WINDOWS, SOAK_WINDOWS, Measurement, Timing, measure_turn
from loadtest.measurement.outcome import Level
from loadtest.report.terminal import Display
from loadtest.requests.bodies import Body, bodies
from loadtest.requests.memory import Store
from loadtest.requests.scenario import RequestSpec
from loadtest.requests.server import Server, StatusError
from loadtest.requests.signature import inputs


@dataclass(frozen=True)
class Side:
    """A target of the measurement, which alternates with another: a server, and the bodies of each kind of request."""

    title: str
    server: Server
    bodies: Sequence[Sequence[Body]]


Measurements = dict[tuple[Level, str], list[Measurement]]  # by level and the title of a side


def build_sides(
    specs: Sequence[RequestSpec], servers: Sequence[Server], seed: int, store: Store | None = None
) -> list[Side]:
    """A side for each server; with ``store``, one with stored keys, and one whose requests contain the keys.

    Each body is sent to its server once.

    Raises:
        ServerError: a server does not respond with status 200.
        ScenarioError: a request does not fit its model.
    """
    known = [[] if spec.body else inputs(servers[0], spec.block) for spec in specs]

    def build(store: Store | None = None) -> list[list[Body]]:
        rng = np.random.default_rng(seed)
        return [bodies(spec, tensors, rng, store) for spec, tensors in zip(specs, known, strict=True)]

    if store:
        (server,) = servers
        sides = [
            Side(f"{server.url} memory", server, build(store)),
            Side(f"{server.url} stateless", server, build()),
        ]
    else:
        all_bodies = build()
        sides = [Side(server.url, server, all_bodies) for server in servers]
    for side in sides:
        for spec, spec_bodies in zip(specs, side.bodies, strict=True):
            for body in spec_bodies:
                status, content = side.server.call(body.path, body.content, body.headers)
                if status != 200:
                    raise StatusError(side.server.url, spec.title, status, content)
    return sides


def measure(
    options: Any,
    sides: Sequence[Side],
    specs: Sequence[RequestSpec],
    measurements: Measurements,
    console: Console,
) -> None:
    """Measure level by level, in rounds, into ``measurements``; every other round reverses the order of the sides."""
    shares = [spec.share / len(several) for spec, several in zip(specs, sides[0].bodies, strict=True) for _ in several]
    seconds = {level: level.soak_s or options.seconds for level in options.levels}
    display = Display(console, sum(seconds.values()) * len(sides))
    with WorkerPool(options.processes) as pool, display.progress:
        for level in options.levels:
            windows = SOAK_WINDOWS if level.soak_s else MEASURED_WINDOWS
            timing = Timing(options.window, seconds[level] / options.rounds, options.max_warmup, windows)
            for i in range(options.rounds):
                for side in sides[:: -1 if i % 2 else 1]:
                    server = side.server
                    turn = Turn(
                        server.address.host,
                        server.port,
                        server.trust if server.tls else None,
                        [
                            Request(server.wire(body.path, body.content, body.headers), kind, spec.generate > 0)
                            for kind, (spec, several) in enumerate(zip(specs, side.bodies, strict=True))
                            for body in several
                        ],
                        shares,
                        level.concurrency or options.connections,
                        level.rate,
                        options.timeout,
                        timing.sample_s,
                        options.seed + 1000 * i,
                    )
                    display.begin_turn(f"{level} {side.title}", min(options.processes, turn.connections))
                    measurement = measure_turn(pool, turn, server, timing, display.update)
                    measurements[level, side.title].append(measurement)
                    display.end_turn(measurement.rate)
