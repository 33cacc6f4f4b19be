"""Requests of ever changing shapes: what the first need is all that is ever needed."""

import asyncio
import time
from pathlib import Path
from random import Random

import numpy as np
import uvloop

from benchmarks.soak.check import Check
from benchmarks.soak.served import Served, served
from benchmarks.soak.wire import NAMES, Connection, Request, binary, native

COUNT, SETTLED = 200_000, 20_000  # requests in all, and those after which memory holds still
GROWTH = 0.05
CLIENTS = 8
NUMBERS = np.random.default_rng(0).random(8 * 96 * 16, np.float32)


def drawn(draw: Random) -> Request:
    """A request of either face whose axes all vary."""
    heads, d_k, d_v = draw.choice([1, 2, 4, 8]), draw.choice([4, 8, 16]), draw.randint(1, 16)
    m, n = draw.randint(1, 96), draw.randint(1, 96)
    shapes = zip(NAMES, [(heads, m, d_k), (heads, n, d_k), (heads, n, d_v)], strict=True)
    arrays = {name: NUMBERS[: np.prod(shape)].reshape(1, *shape) for name, shape in shapes}
    if draw.random() < 0.9:
        return binary(arrays, parameters={"is_causal": draw.random() < 0.5})
    return native({name: array[0, 0].tolist() for name, array in arrays.items()}, is_causal=draw.random() < 0.5)


def shapes(repository: Path, portion: float) -> list[Check]:
    with served(repository) as server:
        return uvloop.run(_shapes(server, int(COUNT * portion), int(SETTLED * portion)))


async def _shapes(server: Served, count: int, settled_after: int) -> list[Check]:
    draw, asked, wrong, settled, most = Random(0), 0, 0, 0, 0
    start = time.monotonic()

    async def client() -> None:
        nonlocal asked, wrong, settled, most
        connection = Connection(server.port)
        while asked < count:
            asked += 1
            wrong += (await connection.ask(drawn(draw).wire())).status != 200
            if asked % (settled_after // 2) == 0:
                resident = server.resident()
                settled = max(settled, resident) if asked <= settled_after else settled
                most = max(most, resident)
                print(f"  {time.monotonic() - start:4.0f} s  {asked:7,} requests  {resident >> 20} MiB", flush=True)
        connection.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    grown = most / settled - 1
    return [
        Check(f"all {count:,} are answered", f"{asked:,}, {wrong} wrong", not wrong and asked >= count),
        Check(
            f"after {settled_after:,} memory grows by less than {GROWTH:.0%}",
            f"{settled >> 20} MiB, then at most {most >> 20} MiB: {grown:.1%}",
            grown < GROWTH,
        ),
        server.is_sound(),
    ]
