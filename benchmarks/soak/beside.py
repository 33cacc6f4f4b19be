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
    return [
        Check(
            f"p99 of small requests < {QUICK} ms",
            f"{p99:.1f} ms, median {np.median(meanwhile):.1f} ({np.median(alone):.1f} alone), {len(meanwhile)} of them "
            f"beside one of {running.result():.1f} s",
            p99 < QUICK,
        ),
        Check(f"p99 of probes < {QUICK} ms", f"{health:.1f} ms, median {np.median(probes.taken):.1f}", health < QUICK),
        Check("it took about as long as wanted", f"{running.result():.1f} s", running.result() > seconds / 2),
        server.is_sound(),
    ]
