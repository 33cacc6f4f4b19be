"""A soak: minutes of mixed requests, errors, reloads and hang-ups, over which memory and descriptors hold still.

``python -m benchmarks.soak --minutes 3 --repository model_repository`` exits with 1 where resident memory grew by more
than 5 percent (and 16 MiB) after the first fifth, where descriptors leaked, or where an answer was a wrong one.
"""

import argparse
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np

GROWTH, SLACK = 0.05, 16 << 20
ATTEND = "/v1/attention/scaled_dot_product"
INFER = "/v2/models/scaled_dot_product/infer"
CLIENTS = 4


def body(draw: random.Random, n: int) -> dict:
    """A request with ``n`` keys."""
    m, d = draw.randint(1, 48), draw.choice([4, 8, 16])
    numbers = np.random.default_rng(draw.getrandbits(32))
    return {
        name: numbers.random((rows, d)).round(3).tolist() for name, rows in (("query", m), ("key", n), ("value", n))
    }


def attend(client: httpx.Client, draw: random.Random, _port: int) -> bool:
    n = draw.randint(1, 96)
    answer = client.post(ATTEND, json=body(draw, n))
    weights = np.array(answer.json().get("weights", []))
    return answer.status_code == 200 and weights.shape[1] == n and bool(np.allclose(weights.sum(-1), 1, atol=1e-5))


def large(client: httpx.Client, draw: random.Random, _port: int) -> bool:
    rows = {"shape": [draw.randint(500, 1500), 1]}
    rows["data"] = [1] * rows["shape"][0]
    answer = client.post(ATTEND, json={"query": rows, "key": rows, "value": rows, "outputs": ["output"]})
    return answer.status_code == 200


def error(client: httpx.Client, draw: random.Random, _port: int) -> bool:
    wrong = {**body(draw, 3), "key": draw.choice([[[1], [2, 3]], "x", None, [[1e39]]])}
    return client.post(ATTEND, json=wrong).status_code == 422 and client.post(INFER, content=b"[{").status_code == 400


def unknown(client: httpx.Client, draw: random.Random, _port: int) -> bool:
    return client.get(f"/v2/models/m{draw.random()}").status_code == 404


def reload(client: httpx.Client, _draw: random.Random, _port: int) -> bool:
    return client.post("/v2/repository/models/dot_product/load").status_code == 200


def hang_up(client: httpx.Client, draw: random.Random, port: int) -> bool:
    del client
    with socket.create_connection(("127.0.0.1", port)) as raw:
        length = draw.choice([10, 100_000])
        raw.sendall(f"POST {ATTEND} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{{".encode())
    return True


MIX = {attend: 60, large: 2, error: 20, unknown: 10, reload: 1, hang_up: 7}


def soak(port: int, until: float, seed: int, told: Counter) -> None:
    draw = random.Random(seed)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        while time.monotonic() < until:
            kind = draw.choices(list(MIX), list(MIX.values()))[0]
            told[kind.__name__ if kind(client, draw, port) else f"wrong: {kind.__name__}"] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--repository", type=Path, default=Path("model_repository"))
    asked = parser.parse_args()
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "service", "--port", "0", "--model-repository", str(asked.repository)]
        server = subprocess.Popen([*command, "--model-control-mode", "explicit"], stdout=log, stderr=subprocess.STDOUT)
        try:
            return watch(server, log, asked.minutes)
        finally:
            server.terminate()
            server.wait()


def watch(server: subprocess.Popen, log, minutes: float) -> int:
    """Soak it, and hold it to its limits."""

    def read() -> str:
        log.seek(0)
        return log.read()

    while "ready: " not in read():
        if server.poll() is not None:
            print(read())
            return 1
        time.sleep(0.1)
    port = int(re.search(r"listening on http://[^:]+:(\d+)", read())[1])
    process, seconds = Path(f"/proc/{server.pid}"), 60 * minutes

    def resident() -> int:
        """Bytes."""
        return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors() -> int:
        return len(list((process / "fd").iterdir()))

    idle = descriptors()
    start, told = time.monotonic(), Counter()
    threads = [threading.Thread(target=soak, args=(port, start + seconds, seed, told)) for seed in range(CLIENTS)]
    for thread in threads:
        thread.start()
    settled = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(seconds / 20)
        past = time.monotonic() - start
        if past < seconds / 5:
            settled = max(settled, resident())
        print(f"{past:6.0f} s  {sum(told.values()):8,} requests  {resident() >> 20:5} MiB  {descriptors()} descriptors")
    time.sleep(12)  # past keep-alive, and past the idleness that gives memory back
    print(f"   end  {dict(told)}  {resident() >> 20} MiB (settled at {settled >> 20})  {descriptors()} descriptors")
    wrong = [name for name in told if name.startswith("wrong")]
    grown = resident() > settled * (1 + GROWTH) + SLACK
    return int(bool(wrong) or grown or descriptors() > idle + 2 or "Traceback" in read())


if __name__ == "__main__":
    sys.exit(main())
