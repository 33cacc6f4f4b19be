"""Requests with ever changing shapes: after the first ones, memory must not grow."""

import asyncio
import time
from pathlib import Path
from random import Random

import numpy as np
import uvloop

from benchmarks.server import Served, served
from benchmarks.soak.check import Check
from benchmarks.soak.wire import NAMES, Connection, Request, binary, native

COUNT, SETTLED = 200_000, 20_000  # all requests, and those after which memory must not grow
MAX_GROWTH = 0.05
CLIENTS = 8
NUMBERS = np.random.default_rng(0).random(8 * 96 * 16, np.float32)


def random_request(rng: Random) -> Request:
    """A request to either API, with random sizes of all axes."""
    heads, d_k, d_v = rng.choice([1, 2, 4, 8]), rng.choice([4, 8, 16]), rng.randint(1, 16)
    m, n = rng.randint(1, 96), rng.randint(1, 96)
    shapes = zip(NAMES, [(heads, m, d_k), (heads, n, d_k), (heads, n, d_v)], strict=True)
    arrays = {name: NUMBERS[: np.prod(shape)].reshape(1, *shape) for name, shape in shapes}
    if rng.random() < 0.9:
        return binary(arrays, parameters={"is_causal": rng.random() < 0.5})
    return native({name: array[0, 0].tolist() for name, array in arrays.items()}, is_causal=rng.random() < 0.5)


def shapes(repository: Path, portion: float) -> list[Check]:
    with served(repository) as server:
        return uvloop.run(_shapes(server, int(COUNT * portion), int(SETTLED * portion)))


async def _shapes(server: Served, count: int, settled_after: int) -> list[Check]:
    rng, sent, wrong, settled_bytes, peak_bytes = Random(0), 0, 0, 0, 0
    start_s = time.monotonic()

    async def client() -> None:
        nonlocal sent, wrong, settled_bytes, peak_bytes
        connection = Connection(server.port)
        while sent < count:
            sent += 1
            wrong += (await connection.post(random_request(rng).wire())).status != 200
            if sent % (settled_after // 2) == 0:
                now_bytes = server.resident_bytes()
                settled_bytes = max(settled_bytes, now_bytes) if sent <= settled_after else settled_bytes
                peak_bytes = max(peak_bytes, now_bytes)
                print(f"  {time.monotonic() - start_s:4.0f} s  {sent:7,} requests  {now_bytes >> 20} MiB", flush=True)
        connection.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    growth = peak_bytes / settled_bytes - 1
    return [
        Check(f"all {count:,} requests are answered", f"{sent:,}, {wrong} wrong", not wrong and sent >= count),
        Check(
            f"memory grows by less than {MAX_GROWTH:.0%} after {settled_after:,} requests",
            f"{settled_bytes >> 20} MiB, then at most {peak_bytes >> 20} MiB: {growth:.1%}",
            growth < MAX_GROWTH,
        ),
        server.check(),
    ]
