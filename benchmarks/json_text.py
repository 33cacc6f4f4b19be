"""Numbers as JSON text: each in the fewest digits that are exact, and rounded with ``decimals``.

First the writers alone, on the weights of a softmax. Then requests to ``heed serve`` in its native format by wrk, of
workloads W3 and W4 of ``benchmarks.serving``: exact and rounded in turns of one server. These figures are medians.

Last how long a health probe waits, at most, while the server reads a body of 100 MB that it has not met before.

usage: python -m benchmarks.json_text [--repeats 9] [--seconds 2] [--out benchmarks/json_text.md]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import orjson
from rich.progress import track

from benchmarks.report.markdown import table
from benchmarks.server import served
from benchmarks.serving import graphs
from benchmarks.serving.formats import bodies
from benchmarks.serving.load import load
from benchmarks.serving.options import CACHE
from benchmarks.serving.workloads import WORKLOADS
from service.codec.json_writer import write_json
from service.steps import drain

DECIMALS = (None, 6, 4)
MODELS = {"W3": "mha_block", "W4": "scaled_dot_product"}
CONNECTIONS = (1, 8)
BODY_BYTES, WIDTH = 100_000_000, 64


def writers(repeats: int) -> list[tuple[str, ...]]:
    """Nanoseconds and bytes a number, of each number of decimals."""
    scores = np.random.default_rng(0).standard_normal((8, 128, 128), np.float32)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    texts = {decimals: b"".join(_text(weights, decimals)) for decimals in DECIMALS}
    times: dict[int | None, list[float]] = {decimals: [] for decimals in DECIMALS}
    for _ in range(repeats):
        for decimals, measured in times.items():
            measured.append(min(_seconds(lambda d=decimals: _text(weights, d)) for _ in range(5)))  # type: ignore[misc]
    return [
        (_named(decimals), f"{1e9 * median(times[decimals]) / weights.size:.1f}", f"{len(text) / weights.size:.1f}")
        for decimals, text in texts.items()
    ]


def requests(port: int, repeats: int, seconds: int) -> list[tuple[str, ...]]:
    """Requests a second, response bytes, and their ratios to exact numbers."""
    rows = []
    cells = [(name, connections) for name in MODELS for connections in CONNECTIONS]
    with TemporaryDirectory() as folder, httpx.Client(timeout=60) as client:
        for name, connections in track(cells, "requests"):
            url = f"http://127.0.0.1:{port}/v1/attention/{MODELS[name]}"
            files, sizes = {}, {}
            rates: dict[int | None, list[float]] = {decimals: [] for decimals in DECIMALS}
            (text,) = bodies(WORKLOADS[name], MODELS[name], "native").texts
            for decimals in DECIMALS:
                files[decimals] = Path(folder, f"{name}-{decimals}")
                files[decimals].write_bytes(orjson.dumps({**orjson.loads(text), "decimals": decimals}))
                headers = {"Content-Type": "application/json"}
                answer = client.post(url, content=files[decimals].read_bytes(), headers=headers).raise_for_status()
                sizes[decimals] = len(answer.content)
            for _ in range(repeats):
                for decimals, file in files.items():
                    result = load(url, [file], {"Content-Type": "application/json"}, connections, seconds)
                    if result["errors"]:
                        raise RuntimeError(f"{name}, {connections} connections: {result['errors']}")
                    rates[decimals].append(result["rps"])
            for decimals, measured in rates.items():
                ratios = [rate / exact for rate, exact in zip(measured, rates[None], strict=True)]
                rows.append(
                    (
                        f"{name}, {connections} connections, {_named(decimals)}",
                        f"{median(measured):.0f}",
                        f"{median(ratios):.2f}",
                        f"{sizes[decimals] / sizes[None]:.2f}",
                    )
                )
    return rows


def longest_waits(port: int, repeats: int) -> list[tuple[str, ...]]:
    """Of a probe every millisecond, in milliseconds: the longest while nothing else is asked, and for each API."""
    count = BODY_BYTES // 2 // WIDTH // 10
    rows = np.random.default_rng(0).standard_normal((count, WIDTH), np.float32)
    tensors = {"query": rows[:1], "key": rows, "value": rows}
    native = orjson.dumps({**tensors, "outputs": ["output"]}, option=orjson.OPT_SERIALIZE_NUMPY)
    inputs = [
        {"name": name, "shape": [1, 1, *array.shape], "datatype": "FP32", "data": array.ravel()}
        for name, array in tensors.items()
    ]
    v2 = orjson.dumps({"inputs": inputs, "outputs": [{"name": "output"}]}, option=orjson.OPT_SERIALIZE_NUMPY)
    bodies = {
        "nothing": ("", b""),
        "native, nested lists": ("/v1/attention/scaled_dot_product", native),
        "V2, flat lists": ("/v2/models/scaled_dot_product/infer", v2),
    }
    waits: dict[str, list[float]] = {name: [] for name in bodies}
    with ProcessPoolExecutor(1) as pool, TemporaryDirectory() as folder:  # what sends shares no lock with the probes
        for _ in range(repeats):
            for name, (path, body) in bodies.items():
                file = Path(folder, "body")
                file.write_bytes(body)
                pending = pool.submit(_post, f"http://127.0.0.1:{port}{path}" if path else "", file)
                waits[name].append(1e3 * max(_probes(port, pending)))
                pending.result()
    return [(name, f"{len(bodies[name][1]) / 1e6:.0f}", f"{max(waited):.1f}") for name, waited in waits.items()]


def _post(url: str, file: Path) -> None:
    """Post a file; without an address, wait as long as that takes, about."""
    if url:
        headers = {"Content-Type": "application/json"}
        httpx.post(url, content=file.read_bytes(), headers=headers, timeout=60).raise_for_status()
    else:
        time.sleep(2)


def _probes(port: int, pending: "Future[None]") -> Iterator[float]:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        while not pending.done():
            yield _seconds(lambda: client.get("/v2/health/live").raise_for_status())
            time.sleep(1e-3)


def _text(array: np.ndarray, decimals: int | None) -> list[bytes]:
    return drain(write_json([b"", b""], [array], decimals))


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _named(decimals: int | None) -> str:
    return "exact" if decimals is None else f"{decimals} decimals"


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="turns of each case")
    parser.add_argument("--seconds", type=int, default=2, help="of each turn")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    options = parser.parse_args()
    models = CACHE / f"models-{graphs.fingerprint()}"
    command = [sys.executable, "-m", "benchmarks.serving.graphs", str(models), *MODELS.values()]
    subprocess.run(command, cwd=graphs.ROOT, check=True)
    text = [*table(("numbers", "ns each", "bytes each"), writers(options.repeats))]
    with served(models) as server:
        rows = requests(server.port, options.repeats, options.seconds)
        waits = longest_waits(server.port, options.repeats)
    text += ["", *table(("requests", "a second", "rate to exact", "bytes to exact"), rows)]
    text += ["", *table(("body", "MB", "longest wait of a probe, ms"), waits)]
    report = "\n".join(["# Numbers as JSON text", "", *(__doc__ or "").strip().splitlines()[:6], "", *text, ""])
    options.out.write_text(report)
    print(report)


if __name__ == "__main__":
    main()
