"""Minutes of mixed requests, errors, reloads and hang-ups, over which memory and descriptors hold still."""

import random
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np

from benchmarks.soak.check import Check
from benchmarks.soak.served import Served, served

GROWTH, SLACK = 0.05, 16 << 20
QUIET = 12  # seconds, past keep-alive, and past the idleness that gives memory back
ATTEND = "/v1/attention/scaled_dot_product"
INFER = "/v2/models/scaled_dot_product/infer"
CLIENTS = 4
MINUTES = 3


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


def mix(repository: Path, portion: float) -> list[Check]:
    with served(repository, "--model-control-mode", "explicit") as server:
        return _mix(server, 60 * MINUTES * portion)


def _mix(server: Served, seconds: float) -> list[Check]:
    idle, told, settled = server.descriptors(), Counter(), 0
    start = time.monotonic()
    arguments = [(server.port, start + seconds, seed, told) for seed in range(CLIENTS)]
    threads = [threading.Thread(target=soak, args=each) for each in arguments]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(seconds / 20)
        past, now = time.monotonic() - start, server.resident()
        if past < seconds / 5:
            settled = max(settled, now)
        print(
            f"  {past:4.0f} s  {sum(told.values()):7,} requests  {now >> 20} MiB  {server.descriptors()} descriptors",
            flush=True,
        )
    time.sleep(QUIET)
    now, wrong = server.resident(), [name for name in told if name.startswith("wrong")]
    return [
        Check("every answer is right", f"{dict(told)}", not wrong),
        Check(
            f"after a fifth memory grows by less than {GROWTH:.0%} and {SLACK >> 20} MiB",
            f"{settled >> 20} MiB, then {now >> 20} MiB",
            now < settled * (1 + GROWTH) + SLACK,
        ),
        Check("descriptors are given back", f"{idle}, then {server.descriptors()}", server.descriptors() <= idle + 2),
        server.is_sound(),
    ]
