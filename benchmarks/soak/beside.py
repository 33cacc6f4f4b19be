"""While one request computes for a long time, small requests and health probes must be answered as usual."""

import asyncio
import math
import time
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.server import Served, served
from benchmarks.soak.check import Check
from benchmarks.soak.probe import probed
from benchmarks.soak.wire import NAMES, Connection, Request, binary

SECONDS = 10
TRIAL_LENGTH = 8192  # queries and keys of the request whose time is extrapolated
LIMIT_MS = 100  # for a small request and for a probe


def of_length(rows: int) -> Request:
    return binary(dict.fromkeys(NAMES, np.ones((1, 1, rows, 4), np.float32)))


def beside(repository: Path, portion: float) -> list[Check]:
    with served(repository) as server:
        return uvloop.run(_beside(server, SECONDS * portion))


async def _beside(server: Served, seconds: float) -> list[Check]:
    long, small = Connection(server.port), Connection(server.port)

    async def timed_s(connection: Connection, request: bytes) -> float:
        start_s = time.perf_counter()
        assert (await connection.post(request)).status == 200
        return time.perf_counter() - start_s

    small_request = of_length(3).wire()
    trial_s = min([await timed_s(long, of_length(TRIAL_LENGTH).wire()) for _ in range(3)])
    print(f"  {trial_s:.2f} s for {TRIAL_LENGTH} queries and keys")
    long_request = of_length(int(TRIAL_LENGTH * math.sqrt(seconds / trial_s))).wire()
    before_ms = [1000 * await timed_s(small, small_request) for _ in range(50)]
    meanwhile_ms: list[float] = []
    with probed(server.port) as probes:
        running = asyncio.create_task(timed_s(long, long_request))
        await asyncio.sleep(0.1)
        while not running.done():
            meanwhile_ms.append(1000 * await timed_s(small, small_request))
            await asyncio.sleep(0.01)
    long.close()
    small.close()
    p99s_ms = [float(np.quantile(times_ms, 0.99)) for times_ms in (meanwhile_ms, probes.times_ms)]
    medians_ms = [float(np.median(times_ms)) for times_ms in (meanwhile_ms, probes.times_ms)]
    return [
        Check("the long request takes long enough", f"{running.result():.1f} s", running.result() > seconds / 2),
        Check(
            f"meanwhile the medians of small requests and of probes are < {LIMIT_MS} ms",
            f"{medians_ms[0]:.1f} ms ({np.median(before_ms):.1f} ms before), {medians_ms[1]:.1f} ms",
            max(medians_ms) < LIMIT_MS,
        ),
        Check(
            f"p99 of both < {LIMIT_MS} ms",
            f"{p99s_ms[0]:.1f} ms, {p99s_ms[1]:.1f} ms",
            max(p99s_ms) < LIMIT_MS,
            needs_idle_machine=True,
        ),
        server.check(),
    ]
