"""Health probes like a kubelet's, each on a new connection, from a process that does nothing else.

``python -m benchmarks.soak.probe PORT SECONDS`` probes every SECONDS seconds. It prints an empty line after the first
probes, and goes on until its standard input is closed. Then it prints the milliseconds of each probe as JSON, and the
longest scheduling delay: the time by which one of its own sleeps was too long.
"""

import http.client
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

INTERVAL_S = 0.05
PATHS = ("/v2/health/live", "/v2/health/ready")


@dataclass
class Probes:
    """The time of each probe, and the longest scheduling delay."""

    times_ms: list[float] = field(default_factory=list)
    delay_ms: float = 0


def main() -> None:
    port, interval_s, times_ms, delay_ms = int(sys.argv[1]), float(sys.argv[2]), [], 0.0
    while True:
        start_s = time.perf_counter()
        if select.select([sys.stdin], [], [], interval_s)[0]:
            break
        delay_ms = max(delay_ms, 1000 * (time.perf_counter() - start_s - interval_s))
        for path in PATHS:
            start_s = time.perf_counter()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", path)
            assert connection.getresponse().status == 200, path
            times_ms.append(1000 * (time.perf_counter() - start_s))
            connection.close()
        if len(times_ms) == len(PATHS):
            print(flush=True)
    print(json.dumps([times_ms, delay_ms]))


@contextmanager
def probed(port: int, interval_s: float = INTERVAL_S) -> Iterator[Probes]:
    """Probe the server every ``interval_s`` seconds while the context lasts, from its first moment on.

    The result is filled in at the end.

    Raises:
        RuntimeError: a probe was not answered with status 200.
    """
    probes = Probes()
    command = [sys.executable, "-m", "benchmarks.soak.probe", str(port), str(interval_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield probes
    finally:
        output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError("a health probe failed")
    probes.times_ms, probes.delay_ms = json.loads(output)


if __name__ == "__main__":
    main()
