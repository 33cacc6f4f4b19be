"""Ten times more requests than can be served: each gets its answer or its refusal, and probes do not notice."""

import asyncio
import base64
import math
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.soak.check import Check
from benchmarks.soak.probe import probed
from benchmarks.soak.served import Served, served
from benchmarks.soak.wire import NAMES, Connection, binary, native

SECONDS = 60
TIMES = 10  # more than can be served
DEADLINE = 2.0  # seconds
LENGTH = 8192  # queries and keys: a tenth of a second of work, for little that goes over the wire
HEALTH = 100  # milliseconds
GROWTH, SLACK = 0.05, 16 << 20


class Load:
    """What became of each request: its status, and how long it took from when it was due."""

    def __init__(self, port: int) -> None:
        self.statuses: Counter[int] = Counter()
        self.taken: list[float] = []  # seconds, of those that were answered with 200
        self.refused: list[float] = []
        self.silent = 0  # without an answer, or refused without Retry-After
        rows = np.ones((1, 1, LENGTH, 1), np.float32)
        coded = {"shape": rows.shape, "dtype": "float32", "base64": base64.b64encode(rows.tobytes()).decode()}
        self._requests = [
            binary(dict.fromkeys(NAMES, rows)).wire(),
            native(dict.fromkeys(NAMES, coded), outputs=["output"]).wire(),
        ]
        self._port = port
        self._idle: list[Connection] = []
        self._asked = 0

    async def ask(self, due: float) -> None:
        connection = self._idle.pop() if self._idle else Connection(self._port)
        self._asked += 1
        try:
            found = await connection.ask(self._requests[self._asked % 2])
        except (OSError, asyncio.IncompleteReadError):
            self.silent += 1
            connection.close()
            return
        self._idle.append(connection)
        self.statuses[found.status] += 1
        taken = time.perf_counter() - due
        (self.taken if found.status == 200 else self.refused).append(taken)
        self.silent += found.status != 200 and int(found.headers.get(b"retry-after", 0)) < 1

    async def closed(self, clients: int, seconds: float) -> float:
        """Requests that are served in a second, where each of ``clients`` waits for its answer."""
        end = time.perf_counter() + seconds

        async def client() -> int:
            asked = 0
            while time.perf_counter() < end:
                await self.ask(time.perf_counter())
                asked += 1
            return asked

        return sum(await asyncio.gather(*(client() for _ in range(clients)))) / seconds

    async def open(self, rate: float, seconds: float) -> None:
        """``rate`` requests a second, whatever becomes of them; returns when all are answered."""
        start, tasks = time.perf_counter(), set()
        for number in range(math.ceil(rate * seconds)):
            due = start + number / rate
            await asyncio.sleep(max(0, due - time.perf_counter()))
            task = asyncio.create_task(self.ask(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


def overload(repository: Path, portion: float) -> list[Check]:
    with served(repository, "--deadline-seconds", f"{DEADLINE:g}") as server:
        return uvloop.run(_overload(server, max(2, SECONDS * portion)))


async def _overload(server: Served, seconds: float) -> list[Check]:
    calm = Load(server.port)
    await calm.closed(2, 0.5)
    rate = await calm.closed(len(os.sched_getaffinity(0)) + 1, min(5, seconds / 3))
    calm.close()
    print(f"  {rate:.0f} requests a second can be served; {TIMES * rate:.0f} come for {seconds:.0f} s")
    load, resident = Load(server.port), []

    async def watch() -> None:
        while True:
            resident.append(server.resident())
            await asyncio.sleep(seconds / 50)

    with probed(server.port) as probes:
        start = time.perf_counter()
        watching = asyncio.create_task(watch())
        await load.open(TIMES * rate, seconds)
        watching.cancel()
        came = sum(load.statuses.values()) / (time.perf_counter() - start)
    load.close()
    half = len(resident) // 2
    early, late = max(resident[:half]), max(resident[half:])
    p99 = float(np.quantile(load.taken, 0.99)) if load.taken else math.inf
    refused = float(np.quantile(load.refused, 0.99)) if load.refused else 0
    return [
        Check(
            "each gets an answer, or a refusal with Retry-After",
            f"{dict(load.statuses)}, {load.silent} without; {came / rate:.1f} times what can be served",
            not load.silent and set(load.statuses) <= {200, 429, 503, 504},
        ),
        Check(
            f"p99 of the served < {DEADLINE:g} s, the deadline",
            f"{p99:.2f} s, of the refused {refused:.2f} s",
            p99 < DEADLINE,
            quiet=True,
        ),
        Check(
            "memory holds still",
            f"{early >> 20} MiB, then {late >> 20} MiB",
            late < early * (1 + GROWTH) + SLACK,
        ),
        Check(
            f"half of the probes < {HEALTH} ms",
            f"median {np.median(probes.taken):.1f} ms of {len(probes.taken)}",
            np.median(probes.taken) < HEALTH,
        ),
        Check(
            f"all probes < {HEALTH} ms, beyond what the machine keeps everybody waiting",
            f"at most {max(probes.taken):.0f} ms; the machine {probes.noise:.0f} ms",
            max(probes.taken) < HEALTH + probes.noise,
            quiet=True,
        ),
        server.is_sound(),
    ]
