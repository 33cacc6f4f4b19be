"""What the metrics say of a saturated server: latency beside the client's, the event loop's lag, and health meanwhile.

wrk sends small binary requests over no connection, then 1, 64 and 512. Meanwhile liveness and readiness are probed on
the monitoring port, every 20 ms; beside one connection every 500 ms, as its slowest requests would else be those that
had to share their processor with the probes.

usage: python -m benchmarks.saturation REPOSITORY [--connections 0,1,64,512] [--seconds 8]
"""

import argparse
import math
import re
import socket
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np

from benchmarks.report.markdown import table
from benchmarks.sampling import sampled
from benchmarks.server import served
from benchmarks.serving.load import load
from benchmarks.soak.probe import probed
from heed_client.v2 import binary_request

MODEL = "scaled_dot_product"
SHAPE = (1, 1, 256, 8)  # of query, key and value: 24 KB
PROBE_S = 0.02
SCRAPE_S = 0.5
PUBLISHED_S = 1.1  # until a worker's counts are in the metrics
GAUGES = ("event_loop_busy_ratio", "event_loop_lag_max_seconds", "connections", "connections_unread", "requests_queued")
HEADS = (
    *("connections", "requests/s", "client p50 / p99 ms", "server p50 / p99 ms", "server / client p50, p99"),
    *("health, longest ms", "busy", "largest lag ms", "unread", "queued"),
)


def measure(port: int, monitoring_port: int, connections: int, seconds: int) -> tuple[Any, ...]:
    """A row of the table. The gauges are those last read while all clients were connected."""
    before, probe_s = scrape(monitoring_port), SCRAPE_S if connections == 1 else PROBE_S
    with probed(monitoring_port, probe_s) as probes, sampled(partial(gauges, monitoring_port), SCRAPE_S) as states:
        client = ask(port, connections, seconds)
    time.sleep(PUBLISHED_S)
    after = scrape(monitoring_port)
    client_ms = client["p50_ms"], client["p99_ms"]
    server_ms = [1e3 * quantile(before, after, share) for share in (0.5, 0.99)]
    state = next((state for state in reversed(states) if state["connections"] >= connections), states[-1])
    return (
        connections,
        f"{client['rps']:,.0f}",
        " / ".join(f"{ms:.1f}" for ms in client_ms),
        " / ".join(f"{ms:.1f}" for ms in server_ms),
        ", ".join(f"{own / theirs:.2f}" for own, theirs in zip(server_ms, client_ms, strict=True)),
        f"{max(probes.times_ms):.1f} of {len(probes.times_ms)}",
        f"{state['event_loop_busy_ratio']:.2f}",
        f"{1e3 * state['event_loop_lag_max_seconds']:.0f}",
        f"{state['connections_unread']:.0f}",
        f"{state['requests_queued']:.0f}",
    )


def ask(port: int, connections: int, seconds: int) -> dict[str, Any]:
    """The rate and the latency of requests over so many connections; of none, idle for as long."""
    if not connections:
        time.sleep(seconds)
        return {"rps": 0.0, "p50_ms": math.nan, "p99_ms": math.nan}
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(SHAPE, dtype=np.float32) for name in ("query", "key", "value")}
    headers, pieces = binary_request(arrays, outputs=["output"])
    with TemporaryDirectory() as folder:
        file = Path(folder, "body")
        file.write_bytes(b"".join(pieces))
        result = load(f"http://127.0.0.1:{port}/v2/models/{MODEL}/infer", [file], headers, connections, seconds)
    if result["errors"]:
        raise RuntimeError(f"not all requests were answered: {result['errors']}")
    return result


def scrape(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        text: str = response.read().decode()
    return text


def gauges(port: int) -> dict[str, float]:
    text = scrape(port)
    return {name: float(re.search(rf"^heed_{name} (\S+)", text, re.MULTILINE)[1]) for name in GAUGES}  # type: ignore[index]


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


def main() -> None:
    """Measure each number of connections in turn on one server with one process, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--connections", default="0,1,64,512")
    parser.add_argument("--seconds", type=int, default=8)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        monitoring_port = free.getsockname()[1]
    flags = "--workers", "1", "--monitoring-port", str(monitoring_port)
    with served(options.repository, *flags) as server:
        ask(server.port, 1, 1)
        time.sleep(PUBLISHED_S)
        levels = map(int, options.connections.split(","))
        rows = [measure(server.port, monitoring_port, connections, options.seconds) for connections in levels]
    print("\n".join(table(HEADS, rows)))


if __name__ == "__main__":
    main()
