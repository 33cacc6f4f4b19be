"""Beside one request that computes for long, small ones and probes are answered as if it were not there."""

import asyncio
import math
import time
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.soak.check import Check
from benchmarks.soak.probe import probed
from benchmarks.soak.served import Served, served
from benchmarks.soak.wire import NAMES, Connection, Request, binary

SECONDS = 10
FIRST = 8192  # queries and keys, to see what such work takes
QUICK = 100  # milliseconds, of a small request and a probe


def of_length(rows: int) -> Request:
    return binary(dict.fromkeys(NAMES, np.ones((1, 1, rows, 4), np.float32)))


def beside(repository: Path, portion: float) -> list[Check]:
    with served(repository) as server:
        return uvloop.run(_beside(server, SECONDS * portion))


async def _beside(server: Served, seconds: float) -> list[Check]:
    long, small = Connection(server.port), Connection(server.port)

    async def timed(connection: Connection, request: bytes) -> float:
        start = time.perf_counter()
        assert (await connection.ask(request)).status == 200
        return time.perf_counter() - start

    brief = of_length(3).wire()
    taken = min([await timed(long, of_length(FIRST).wire()) for _ in range(3)])
    print(f"  {taken:.2f} s for {FIRST} queries and keys")
    request = of_length(int(FIRST * math.sqrt(seconds / taken))).wire()
    alone = [1000 * await timed(small, brief) for _ in range(50)]
    meanwhile: list[float] = []
    with probed(server.port) as probes:
        running = asyncio.create_task(timed(long, request))
        await asyncio.sleep(0.1)
        while not running.done():
            meanwhile.append(1000 * await timed(small, brief))
            await asyncio.sleep(0.01)
    long.close()
    small.close()
    p99, health = float(np.quantile(meanwhile, 0.99)), float(np.quantile(probes.taken, 0.99))
    medians = float(np.median(meanwhile)), float(np.median(probes.taken))
    return [
        Check("it takes about as long as wanted", f"{running.result():.1f} s", running.result() > seconds / 2),
        Check(
            f"meanwhile half of the small requests and of the probes < {QUICK} ms",
            f"medians {medians[0]:.1f} ms of {len(meanwhile)} ({np.median(alone):.1f} ms before), {medians[1]:.1f} ms",
            max(medians) < QUICK,
        ),
        Check(f"p99 of both < {QUICK} ms", f"{p99:.1f} ms, {health:.1f} ms", max(p99, health) < QUICK, quiet=True),
        server.is_sound(),
    ]
