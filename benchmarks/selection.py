"""What a selection saves: all weights of a stack, one layer and head of them, and what is derived from them, in binary.

Each kind of request is asked in turns of one server, so that all meet the same machine. The time is from the first byte
sent to the last byte received, without decoding.

usage: python -m benchmarks.selection REPOSITORY NAME [--n 512] [--repeats 9]
"""

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np

from benchmarks.report.markdown import table
from benchmarks.server import served
from heed_client.v2 import binary_request

WEIGHTS = ["weights"]
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "output alone": (["output"], {}),
    "all weights": (WEIGHTS, {}),
    "layers=3 heads=1": (WEIGHTS, {"layers": "3", "heads": "1"}),
    "the last query": (WEIGHTS, {"queries": "-1"}),
    "reduce_heads=mean": (WEIGHTS, {"reduce_heads": "mean"}),
    "weights_top_k=8": (WEIGHTS, {"weights_top_k": 8}),
    "weights_dtype=uint8": (WEIGHTS, {"weights_dtype": "uint8"}),
    "weights_pool=64": (WEIGHTS, {"weights_pool": 64}),
    "entropy": (["entropy"], {}),
    "received": (["received"], {}),
    "rollout": (["rollout"], {}),
}


def ask(client: httpx.Client, name: str, ids: np.ndarray, case: str) -> tuple[float, float, float, int]:
    """Milliseconds of a request, of its run and of its encoding, and the bytes of the response."""
    outputs, options = CASES[case]
    headers, pieces = binary_request({"input_ids": ids}, outputs, options)
    start = time.perf_counter()
    response = client.post(f"/v2/models/{name}/infer", content=b"".join(pieces), headers=headers)
    wall_ms = 1e3 * (time.perf_counter() - start)
    response.raise_for_status()
    stages = dict(part.strip().split(";dur=") for part in response.headers["server-timing"].split(","))
    return wall_ms, float(stages["compute"]), float(stages["encode"]), len(response.content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("name")
    parser.add_argument("--n", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    ids = np.random.default_rng(0).integers(0, 1000, (1, options.n))
    times: dict[str, list[tuple[float, float, float, int]]] = {case: [] for case in CASES}
    with (
        served(options.repository) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=120) as client,
    ):
        for turn in range(options.repeats + 1):
            for case in CASES:
                measured = ask(client, options.name, ids, case)
                if turn:
                    times[case].append(measured)
    rows = []
    for case, measured in times.items():
        wall_ms, run_ms, encode_ms, size = (median(column) for column in zip(*measured, strict=True))
        rows.append((case, f"{wall_ms:.1f}", f"{run_ms:.1f}", f"{encode_ms:.2f}", f"{size:,.0f}"))
    print("\n".join(table(("request", "ms", "run ms", "encode ms", "response bytes"), rows)))


if __name__ == "__main__":
    main()
