"""Health probes as a kubelet makes them, each on a connection of its own, from a process that does nothing else.

``python -m benchmarks.soak.probe PORT`` asks until its input is closed, then says as JSON what each took, in
milliseconds, and by how much its own naps were too long at most: so long the machine kept everybody waiting.
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

EVERY = 0.05  # seconds


@dataclass
class Probes:
    """Milliseconds."""

    taken: list[float] = field(default_factory=list)
    noise: float = 0


def main() -> None:
    port, taken, noise = int(sys.argv[1]), [], 0.0
    while True:
        start = time.perf_counter()
        if select.select([sys.stdin], [], [], EVERY)[0]:
            break
        noise = max(noise, 1000 * (time.perf_counter() - start - EVERY))
        for path in ("/v2/health/live", "/v2/health/ready"):
            start = time.perf_counter()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", path)
            assert connection.getresponse().status == 200, path
            taken.append(1000 * (time.perf_counter() - start))
            connection.close()
    print(json.dumps([taken, noise]))


@contextmanager
def probed(port: int) -> Iterator[Probes]:
    """What probes found while the block ran; it is known after it.

    Raises:
        RuntimeError: one was not answered with 200.
    """
    found = Probes()
    command = [sys.executable, "-m", "benchmarks.soak.probe", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield found
    finally:
        said, _ = process.communicate()
    if process.returncode:
        raise RuntimeError("a health probe failed")
    found.taken, found.noise = json.loads(said)


if __name__ == "__main__":
    main()
