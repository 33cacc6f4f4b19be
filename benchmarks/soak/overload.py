"""Ten times the load that the server can handle: each request is answered or rejected, and probes stay fast."""

import asyncio
import math
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.sampling import sampled
from benchmarks.server import Served, served
from benchmarks.soak.check import Check, memory_check
from benchmarks.soak.probe import probed
from benchmarks.soak.wire import NAMES, Connection, binary, coded, native

SECONDS = 60
OVERLOAD = 10  # offered rate / rate that the server can handle
DEADLINE_S = 2.0
LENGTH = 8192  # queries and keys: a tenth of a second of work from a small body
PROBE_LIMIT_MS = 100


class Load:
    """Sends requests; counts their statuses, and measures their times from the moment at which each was due."""

    def __init__(self, port: int) -> None:
        self.statuses: Counter[int] = Counter()
        self.answered_s: list[float] = []
        self.rejected_s: list[float] = []
        self.without_response = 0  # or rejected without Retry-After
        rows = np.ones((1, 1, LENGTH, 1), np.float32)
        self._requests = [
            binary(dict.fromkeys(NAMES, rows)).wire(),
            native(dict.fromkeys(NAMES, coded(rows)), outputs=["output"]).wire(),
        ]
        self._port = port
        self._idle: list[Connection] = []
        self._sent = 0

    async def send(self, due_s: float) -> None:
        connection = self._idle.pop() if self._idle else Connection(self._port)
        self._sent += 1
        try:
            response = await connection.post(self._requests[self._sent % 2])
        except (OSError, asyncio.IncompleteReadError):
            self.without_response += 1
            connection.close()
            return
        self._idle.append(connection)
        self.statuses[response.status] += 1
        (self.answered_s if response.status == 200 else self.rejected_s).append(time.perf_counter() - due_s)
        self.without_response += response.status != 200 and int(response.headers.get(b"retry-after", 0)) < 1

    async def closed_loop(self, clients: int, seconds: float) -> float:
        """The number of requests a second if each of ``clients`` waits for its response."""
        end_s = time.perf_counter() + seconds

        async def client() -> int:
            count = 0
            while time.perf_counter() < end_s:
                await self.send(time.perf_counter())
                count += 1
            return count

        return sum(await asyncio.gather(*(client() for _ in range(clients)))) / seconds

    async def open_loop(self, rate: float, seconds: float) -> None:
        """Send ``rate`` requests a second, independent of the responses; return after the last response."""
        start_s, tasks = time.perf_counter(), set()
        for number in range(math.ceil(rate * seconds)):
            due_s = start_s + number / rate
            await asyncio.sleep(max(0, due_s - time.perf_counter()))
            task = asyncio.create_task(self.send(due_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


def overload(repository: Path, portion: float) -> list[Check]:
    with served(repository, "--deadline-seconds", f"{DEADLINE_S:g}") as server:
        return uvloop.run(_overload(server, max(2, SECONDS * portion)))


async def _overload(server: Served, seconds: float) -> list[Check]:
    calm = Load(server.port)
    await calm.closed_loop(2, 0.5)
    capacity = await calm.closed_loop(len(os.sched_getaffinity(0)) + 1, min(5, seconds / 3))
    calm.close()
    print(f"  capacity {capacity:.0f} requests a second; {OVERLOAD * capacity:.0f} are sent for {seconds:.0f} s")
    load = Load(server.port)
    with probed(server.port) as probes, sampled(server.resident_bytes, seconds / 50) as resident_bytes:
        start_s = time.perf_counter()
        await load.open_loop(OVERLOAD * capacity, seconds)
        rate = sum(load.statuses.values()) / (time.perf_counter() - start_s)
    load.close()
    half = len(resident_bytes) // 2
    p99_s = float(np.quantile(load.answered_s, 0.99)) if load.answered_s else math.inf
    rejected_p99_s = float(np.quantile(load.rejected_s, 0.99)) if load.rejected_s else 0
    return [
        Check(
            "each request gets an answer, or a rejection with Retry-After",
            f"{dict(load.statuses)}, {load.without_response} without; {rate / capacity:.1f} times the capacity",
            not load.without_response and set(load.statuses) <= {200, 429, 503, 504},
        ),
        Check(
            f"p99 of answered requests < {DEADLINE_S:g} s, the deadline",
            f"{p99_s:.2f} s, of rejected requests {rejected_p99_s:.2f} s",
            p99_s < DEADLINE_S,
            needs_idle_machine=True,
        ),
        memory_check(max(resident_bytes[:half]), max(resident_bytes[half:])),
        Check(
            f"median of the probes < {PROBE_LIMIT_MS} ms",
            f"{np.median(probes.times_ms):.1f} ms of {len(probes.times_ms)}",
            np.median(probes.times_ms) < PROBE_LIMIT_MS,
            needs_idle_machine=True,
        ),
        Check(
            f"all probes < {PROBE_LIMIT_MS} ms, plus the machine's scheduling delay",
            f"at most {max(probes.times_ms):.0f} ms; scheduling delay {probes.delay_ms:.0f} ms",
            max(probes.times_ms) < PROBE_LIMIT_MS + probes.delay_ms,
            needs_idle_machine=True,
        ),
        server.check(),
    ]
