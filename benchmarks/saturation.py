"""What the metrics say of a saturated server: latency beside the client's, the event loop's lag, and health meanwhile.

Connections ask small requests without pause, each for its next answer only: none, then 1, 64 and 512 of them. Meanwhile
another thread asks for liveness and readiness on the monitoring port, every 20 ms; beside one connection every 500 ms,
as its slowest requests would else be those that had to share their processor with the probes.

usage: python -m benchmarks.saturation REPOSITORY [--connections 0,1,64,512] [--seconds 8]
"""

import argparse
import json
import math
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
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
PUBLISHED_S = 1.1  # until a worker's counts are in the metrics
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

    def __init__(self, port: int, period_s: float) -> None:
        super().__init__(period_s)
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


@dataclass
class Client:
    """One connection: when its request was sent, and what has come of the answer."""

    connection: socket.socket
    sent: float = 0.0
    answer: bytes = b""

    def send(self, content: bytes) -> None:
        self.sent, self.answer = time.perf_counter(), b""
        self.connection.sendall(content)

    def is_answered(self) -> bool:
        """Read what has come; whether the answer is complete."""
        self.answer += self.connection.recv(1 << 16)
        head, found, body = self.answer.partition(b"\r\n\r\n")
        return bool(found) and len(body) == int(re.search(rb"\r\ncontent-length: (\d+)", head)[1])  # type: ignore[index]


def ask(port: int, connections: int, seconds: float) -> list[float]:
    """The times in seconds of all requests that were answered with 200.

    By a plain selector: what asyncio does for each event would be counted as time of the answer.
    """
    content, end, times = request(), time.perf_counter() + seconds, []
    with selectors.DefaultSelector() as selector:
        for _ in range(connections):
            client = Client(socket.create_connection(("127.0.0.1", port)))
            client.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(client.connection, selectors.EVENT_READ, client)
            client.send(content)
        while selector.get_map():
            for key, _ in selector.select():
                client = key.data
                if not client.is_answered():
                    continue
                now = time.perf_counter()
                if client.answer.startswith(b"HTTP/1.1 200"):
                    times.append(now - client.sent)
                if now < end:
                    client.send(content)
                else:
                    selector.unregister(client.connection)
                    client.connection.close()
    return times


def measure(port: int, monitoring_port: int, connections: int, seconds: float) -> Level:
    """One level. The clients are another process: they wait for nothing that is done here."""
    before, scraper = scrape(monitoring_port), Scraper(monitoring_port, connections)
    prober = Prober(monitoring_port, SCRAPE_S if connections == 1 else PROBE_S)
    prober.start()
    scraper.start()
    command = [sys.executable, "-m", "benchmarks.saturation", "--ask", f"{port},{connections},{seconds}"]
    if not connections:
        time.sleep(seconds)
    times = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    time.sleep(PUBLISHED_S)
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


def run(repository: Path, seconds: Iterable[tuple[int, float]]) -> list[Level]:
    """One level for each number of connections, with its seconds, in turn on one server with one process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        monitoring_port = free.getsockname()[1]
    with served(repository, "--workers", "1", "--monitoring-port", str(monitoring_port)) as server:
        ask(server.port, 1, 1.0)
        time.sleep(PUBLISHED_S)
        return [measure(server.port, monitoring_port, *level) for level in seconds]


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
        print(json.dumps(ask(int(port), int(connections), float(seconds))))
    elif options.repository is None:
        parser.error("a model repository is required")
    else:
        seconds = [(int(connections), options.seconds) for connections in options.connections.split(",")]
        print(report(run(options.repository, seconds)))


if __name__ == "__main__":
    main()
