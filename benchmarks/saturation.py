"""What the metrics say of a saturated server: latency beside the client's, the event loop's lag, and health meanwhile.

Connections ask small requests without pause, each for its next answer only: none, then 1, 64 and 512 of them. Meanwhile
another thread asks for liveness and readiness on the monitoring port, every 20 ms.

usage: python -m benchmarks.saturation REPOSITORY [--connections 0,1,64,512] [--seconds 8]
"""

import argparse
import asyncio
import json
import math
import re
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.report.markdown import table
from benchmarks.server import served
from heed_client.v2 import binary_request

MODEL = "scaled_dot_product"
PROBE_S = 0.02
SCRAPE_S = 0.5
GAUGES = ("event_loop_busy_ratio", "event_loop_lag_max_seconds", "connections", "connections_unread", "requests_queued")


@dataclass(frozen=True)
class Level:
    """What was measured with so many connections; times in seconds."""

    connections: int
    requests_per_s: float
    client: tuple[float, float]  # p50 and p99
    server: tuple[float, float]
    health: list[float]  # of all probes
    unhealthy: int  # probes with another status than 200
    gauges: dict[str, float]


class Repeated(threading.Thread):
    """Calls ``once`` every ``period_s`` seconds until it is stopped."""

    def __init__(self, period_s: float) -> None:
        super().__init__(daemon=True)
        self._period_s = period_s
        self._ended = threading.Event()

    def once(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        while not self._ended.wait(self._period_s):
            self.once()

    def stop(self) -> None:
        self._ended.set()
        self.join()


class Prober(Repeated):
    """Asks for liveness and readiness, each time by a new connection."""

    def __init__(self, port: int) -> None:
        super().__init__(PROBE_S)
        self._port = port
        self.times: list[float] = []
        self.statuses: list[int] = []

    def once(self) -> None:
        for path in ("/v2/health/live", "/v2/health/ready"):
            start = time.perf_counter()
            connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
            connection.request("GET", path)
            self.statuses.append(connection.getresponse().status)
            self.times.append(time.perf_counter() - start)
            connection.close()


class Scraper(Repeated):
    """Reads the gauges twice a second; keeps those last read while all clients were connected."""

    def __init__(self, port: int, connections: int) -> None:
        super().__init__(SCRAPE_S)
        self._port, self._connections = port, connections
        self.gauges: dict[str, float] = {}

    def once(self) -> None:
        text = scrape(self._port)
        found = {name: float(re.search(rf"^heed_{name} (\S+)", text, re.MULTILINE)[1]) for name in GAUGES}  # type: ignore[index]
        if found["connections"] >= self._connections or not self.gauges:
            self.gauges = found


def request(m: int = 256, d: int = 8) -> bytes:
    """A small binary request, with its head."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((1, 1, m, d), dtype=np.float32) for name in ("query", "key", "value")}
    fields, pieces = binary_request(arrays, outputs=["output"])
    body = b"".join(pieces)
    lines = [f"POST /v2/models/{MODEL}/infer HTTP/1.1", "Host: heed", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in fields.items()), "", ""]).encode() + body


async def ask(port: int, connections: int, seconds: float) -> list[float]:
    """The times in seconds of all requests that were answered with 200."""
    content, end, times = request(), time.perf_counter() + seconds, []

    async def ask_one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (start := time.perf_counter()) < end:
            writer.write(content)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.search(rb"\r\ncontent-length: (\d+)", head)[1]))  # type: ignore[index]
            if head.startswith(b"HTTP/1.1 200"):
                times.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(ask_one() for _ in range(connections)))
    return times


def measure(port: int, monitoring_port: int, connections: int, seconds: float) -> Level:
    """One level. The clients are another process: they wait for nothing that is done here."""
    before, prober, scraper = scrape(monitoring_port), Prober(monitoring_port), Scraper(monitoring_port, connections)
    prober.start()
    scraper.start()
    command = [sys.executable, "-m", "benchmarks.saturation", "--ask", f"{port},{connections},{seconds}"]
    if not connections:
        time.sleep(seconds)
    times = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    time.sleep(1.1)  # for the metrics to be published
    prober.stop()
    scraper.stop()
    after = scrape(monitoring_port)
    return Level(
        connections,
        len(times) / seconds,
        (float(np.quantile(times or math.nan, 0.5)), float(np.quantile(times or math.nan, 0.99))),
        (quantile(before, after, 0.5), quantile(before, after, 0.99)),
        prober.times,
        sum(status != 200 for status in prober.statuses),
        scraper.gauges,
    )


def scrape(port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def quantile(before: str, after: str, share: float) -> float:
    """A quantile of the requests' durations between two scrapes, in seconds, as Prometheus' ``histogram_quantile``."""
    first, last = buckets(before), buckets(after)
    counts = [(bound, last[bound] - first.get(bound, 0)) for bound in sorted(last)]
    rank = share * counts[-1][1] if counts else 0
    for (low, below), (high, count) in pairwise([(0.0, 0.0), *counts]):
        if count and count >= rank:
            return low + (high - low) * (rank - below) / (count - below)
    return math.nan


def buckets(text: str) -> dict[float, float]:
    lines = re.finditer(r'^heed_request_duration_seconds_bucket{[^}]*le="([^"]+)"[^}]*} (\S+)', text, re.MULTILINE)
    return {float(line[1].replace("+Inf", "inf")): float(line[2]) for line in lines}


def run(repository: Path, seconds: dict[int, float]) -> list[Level]:
    """The levels with these numbers of connections, each for so many seconds, on one server with one process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        monitoring_port = free.getsockname()[1]
    with served(repository, "--workers", "1", "--monitoring-port", str(monitoring_port)) as server:
        asyncio.run(ask(server.port, 1, 1.0))
        return [measure(server.port, monitoring_port, *level) for level in seconds.items()]


def report(levels: list[Level]) -> str:
    head = (
        *("connections", "requests/s", "client p50 / p99 ms", "server p50 / p99 ms", "server / client p50, p99"),
        *("health, longest ms", "busy", "largest lag ms", "unread", "queued"),
    )
    rows = [
        (
            level.connections,
            f"{level.requests_per_s:,.0f}",
            " / ".join(f"{1e3 * value:.1f}" for value in level.client),
            " / ".join(f"{1e3 * value:.1f}" for value in level.server),
            ", ".join(f"{own / theirs:.2f}" for own, theirs in zip(level.server, level.client, strict=True)),
            f"{1e3 * max(level.health):.1f} of {len(level.health)}, {level.unhealthy} failed",
            f"{level.gauges['event_loop_busy_ratio']:.2f}",
            f"{1e3 * level.gauges['event_loop_lag_max_seconds']:.0f}",
            f"{level.gauges['connections_unread']:.0f}",
            f"{level.gauges['requests_queued']:.0f}",
        )
        for level in levels
    ]
    return "\n".join(table(head, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path, nargs="?")
    parser.add_argument("--connections", default="0,1,64,512")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        port, connections, seconds = options.ask.split(",")
        print(json.dumps(asyncio.run(ask(int(port), int(connections), float(seconds)))))
    elif options.repository is None:
        parser.error("a model repository is required")
    else:
        connections = map(int, options.connections.split(","))
        print(report(run(options.repository, dict.fromkeys(connections, options.seconds))))


if __name__ == "__main__":
    main()
