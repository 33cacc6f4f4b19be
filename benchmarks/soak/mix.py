"""Minutes of mixed requests, errors, reloads and aborted requests; memory and descriptors must not grow."""

import random
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np

from benchmarks.server import Served, served
from benchmarks.soak.check import Check, memory_check
from benchmarks.soak.wire import ATTEND, INFER

IDLE_S = 12  # longer than the idle time after which the server returns memory
CLIENTS = 4
MINUTES = 3


def body(rng: random.Random, n: int) -> dict:
    """A request with ``n`` keys."""
    m, d = rng.randint(1, 48), rng.choice([4, 8, 16])
    numbers = np.random.default_rng(rng.getrandbits(32))
    return {
        name: numbers.random((rows, d)).round(3).tolist() for name, rows in (("query", m), ("key", n), ("value", n))
    }


def attend(client: httpx.Client, rng: random.Random, _port: int) -> bool:
    n = rng.randint(1, 96)
    response = client.post(ATTEND, json=body(rng, n))
    weights = np.array(response.json().get("weights", []))
    return response.status_code == 200 and weights.shape[1] == n and bool(np.allclose(weights.sum(-1), 1, atol=1e-5))


def large(client: httpx.Client, rng: random.Random, _port: int) -> bool:
    rows = {"shape": [rng.randint(500, 1500), 1]}
    rows["data"] = [1] * rows["shape"][0]
    response = client.post(ATTEND, json={"query": rows, "key": rows, "value": rows, "outputs": ["output"]})
    return response.status_code == 200


def error(client: httpx.Client, rng: random.Random, _port: int) -> bool:
    wrong = {**body(rng, 3), "key": rng.choice([[[1], [2, 3]], "x", None, [[1e39]]])}
    return client.post(ATTEND, json=wrong).status_code == 422 and client.post(INFER, content=b"[{").status_code == 400


def unknown(client: httpx.Client, rng: random.Random, _port: int) -> bool:
    return client.get(f"/v2/models/m{rng.random()}").status_code == 404


def reload(client: httpx.Client, _rng: random.Random, _port: int) -> bool:
    return client.post("/v2/repository/models/dot_product/load").status_code == 200


def abort(client: httpx.Client, rng: random.Random, port: int) -> bool:
    del client
    with socket.create_connection(("127.0.0.1", port)) as raw:
        length = rng.choice([10, 100_000])
        raw.sendall(f"POST {ATTEND} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{{".encode())
    return True


MIX = {attend: 60, large: 2, error: 20, unknown: 10, reload: 1, abort: 7}  # kinds of requests and their frequencies


def send_mix(port: int, end_s: float, seed: int, counts: Counter) -> None:
    """Send requests until ``end_s`` on the monotonic clock; count them in ``counts``."""
    rng = random.Random(seed)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        while time.monotonic() < end_s:
            kind = rng.choices(list(MIX), list(MIX.values()))[0]
            counts[kind.__name__ if kind(client, rng, port) else f"wrong: {kind.__name__}"] += 1


def mix(repository: Path, portion: float) -> list[Check]:
    with served(repository, "--model-control-mode", "explicit") as server:
        return _mix(server, 60 * MINUTES * portion)


def _mix(server: Served, seconds: float) -> list[Check]:
    idle_descriptors, counts, settled_bytes = server.descriptors(), Counter(), 0
    start_s = time.monotonic()
    end_s = start_s + seconds
    threads = [threading.Thread(target=send_mix, args=(server.port, end_s, seed, counts)) for seed in range(CLIENTS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(seconds / 20)
        past_s, now_bytes = time.monotonic() - start_s, server.resident_bytes()
        if past_s < seconds / 5:
            settled_bytes = max(settled_bytes, now_bytes)
        requests, descriptors = sum(counts.values()), server.descriptors()
        print(f"  {past_s:4.0f} s  {requests:7,} requests  {now_bytes >> 20} MiB  {descriptors} files", flush=True)
    time.sleep(IDLE_S)
    now_bytes, wrong = server.resident_bytes(), [name for name in counts if name.startswith("wrong")]
    return [
        Check("every answer is right", f"{dict(counts)}", not wrong),
        memory_check(settled_bytes, now_bytes),
        Check(
            "descriptors are closed",
            f"{idle_descriptors}, then {server.descriptors()}",
            server.descriptors() <= idle_descriptors + 2,
        ),
        server.check(),
    ]
