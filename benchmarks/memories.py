"""What a memory saves: queries of stored keys and values beside requests that carry them.

The cases take turns on one server, because the speed of the machine varies; a ratio is the median of the ratios of each
turn. The time is from the first byte sent to the last byte received, on one connection. Then the kernel that walks
stored keys is measured beside numpy and faiss (``benchmarks/memory_kernel.py``).

usage: python -m benchmarks.memories REPOSITORY [--repeats 9] [--n 1000000]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import orjson

from benchmarks import memory_kernel
from benchmarks.report.markdown import table
from benchmarks.server import served
from heed_client.v2 import binary_request

BLOCK, HEADS, D = "scaled_dot_product", 8, 64
QUERIED, DECODED = 8192, 4096  # keys
QUICK = 5  # requests of a quick case in each turn
Case = Callable[[], object]
PAIRS = {  # case -> the one that it is to be faster than, and how many times
    "query, JSON": ("stateless, JSON", 50),
    "query, binary": ("stateless, binary", 4),
    "decoding step, JSON": ("stateless step, JSON", 20),
}


class Caller:
    """Requests on one connection; each answers the output alone."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def store(self, key: np.ndarray, value: np.ndarray) -> str:
        tensors = {"key": key, "value": value}
        head = orjson.dumps({
            name: {"shape": array.shape, "dtype": "float32", "binary_data_size": array.nbytes}
            for name, array in tensors.items()
        })  # fmt: skip
        headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
        content = b"".join([head, *(array.tobytes() for array in tensors.values())])
        answer = self._client.post("/v1/memories", content=content, headers=headers).raise_for_status()
        return str(answer.json()["id"])

    def json(self, **fields: Any) -> Case:
        """A native request with all tensors as lists; its body is made once."""
        content = orjson.dumps({**fields, "outputs": ["output"]}, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {"Content-Type": "application/json"}
        return lambda: self._client.post(f"/v1/attention/{BLOCK}", content=content, headers=headers).raise_for_status()

    def binary(self, arrays: dict[str, np.ndarray], **parameters: Any) -> Case:
        """A V2 request with binary tensors."""
        headers, pieces = binary_request(arrays, ["output"], parameters)
        content = b"".join(pieces)
        path = f"/v2/models/{BLOCK}/infer"
        return lambda: self._client.post(path, content=content, headers=headers).raise_for_status()


def cases(caller: Caller) -> Iterator[tuple[str, Case, int]]:
    """The cases, and how many requests of each are in a turn."""
    rng = np.random.default_rng(0)

    def normal(n: int) -> np.ndarray:
        return rng.standard_normal((1, HEADS, n, D), np.float32)

    query, key, value = normal(1), normal(QUERIED), normal(QUERIED)
    memory = caller.store(key, value)
    yield "stateless, JSON", caller.json(query=query, key=key, value=value), 1
    yield "query, JSON", caller.json(query=query, memory=memory), QUICK
    yield "stateless, binary", caller.binary({"query": query, "key": key, "value": value}), 1
    yield "query, binary", caller.binary({"query": query}, memory=memory), QUICK
    key, value = normal(DECODED), normal(DECODED)
    memory = caller.store(key, value)
    step = caller.json(query=query, key=normal(1), value=normal(1), memory=memory, memory_append=True)
    yield "stateless step, JSON", caller.json(query=query, key=key, value=value), 1
    yield "decoding step, JSON", step, QUICK


def measure(caller: Caller, repeats: int) -> Iterator[str]:
    """The table of the cases."""
    all_cases = [*cases(caller)]
    times: dict[str, list[float]] = {name: [] for name, _, _ in all_cases}
    for turn in range(repeats + 1):
        for name, case, count in all_cases:
            start = time.perf_counter()
            for _ in range(count):
                case()
            if turn:
                times[name].append(1e3 * (time.perf_counter() - start) / count)
    rows = []
    for name, ms in times.items():
        other, asked = PAIRS.get(name, ("", 0))
        ratio = median(a / b for a, b in zip(times[other], ms, strict=True)) if other else 0
        rows.append((name, f"{median(ms):.2f}", f"{ratio:.1f} x {other} (asked: {asked})" if other else None))
    yield from table(("case", "median ms", "rate"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--n", type=int, default=1_000_000, help="keys of the kernel's cases")
    options = parser.parse_args()
    print(f"{HEADS} heads, d {D}, one query; {QUERIED:,} keys, in decoding {DECODED:,}\n")
    with (
        served(options.repository) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=120) as client,
    ):
        print("\n".join(measure(Caller(client), options.repeats)), "\n")
    with tempfile.TemporaryDirectory() as folder:
        for n in (options.n, 4 * options.n):  # first, as later cases leave free memory in the heap
            memory_kernel.memory(Path(folder), n, D)
        memory_kernel.many_keys(Path(folder), options.n, D, options.repeats)


if __name__ == "__main__":
    main()
