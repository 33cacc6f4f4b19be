"""Triton over gRPC and HTTP beside Heed over HTTP, all in binary: ``python -m benchmarks.grpc --help``.

h2load, one thread in C, posts one body on each connection again and again, over HTTP/2 to gRPC and over HTTP/1.1 to
the others, on the same cores as the servers. The servers take turns. Ratios are of Heed to Triton in adjacent turns.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from rich.progress import track

from benchmarks import CACHE
from benchmarks.report.markdown import table
from benchmarks.report.spread import spread_of
from benchmarks.serving import environment, graphs, in_process
from benchmarks.serving.cell import Cell
from benchmarks.serving.formats import bodies, max_difference
from benchmarks.serving.options import TRITON as CONTAINER
from benchmarks.serving.servers import PEERS, heed, triton_settings
from benchmarks.serving.turn import TOLERANCE, start_contestant
from benchmarks.serving.workloads import WORKLOADS, Workload
from benchmarks.turns import take_turns

CLIENT = ("tritonclient==2.69.0", "tritonclient[grpc]")
NAMES = ("W1", "W2", "W3", "W4")
METHOD = "inference.GRPCInferenceService/ModelInfer"
GRPC = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
HEED, TRITON_HTTP, TRITON_GRPC = "Heed, HTTP", "Triton, HTTP", "Triton, gRPC"


def main() -> int:
    options = _options()
    if not shutil.which("h2load"):
        print("h2load, the load generator, is not installed: apt-get install nghttp2-client", file=sys.stderr)
        return 2
    models = (CACHE / f"models-{graphs.fingerprint()}").resolve()
    missing = [name for name in ("sdpa", "mha") if not (models / name).exists()]
    if missing:
        subprocess.run([sys.executable, "-m", "benchmarks.serving.graphs", models, *missing], check=True)
    port = options.port
    triton = triton_settings(options.triton_binary, options.triton_backends, options.triton_libraries)
    server = next(one for one in triton if one.name == options.setting)
    server = replace(server, environment={**server.environment, "BENCH_GRPC_PORT": str(port + 2)})
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        for one, number in ((heed(), port), (server, port + 1)):
            first = Cell("W1", "binary", 1)
            stack.enter_context(start_contestant(one.name, one, first, models, Path(scratch), CACHE, number))
        cells = [(name, connections) for name in NAMES for connections in options.concurrency]
        targets = {name: dict(_targets(WORKLOADS[name], port, models, Path(scratch))) for name in NAMES}
        rows = [
            [f"{name}/{connections}", *_measure(targets[name], connections, Path(scratch), options)]
            for name, connections in track(cells, description="cells")
        ]
    heads = ["cell", *(f"{name}: requests/s, p99 ms" for name in (HEED, TRITON_HTTP, TRITON_GRPC)), "Heed / gRPC"]
    print("\n".join(table(heads, rows)))
    return 0


def _measure(
    targets: Mapping[str, list[str]], connections: int, scratch: Path, options: argparse.Namespace
) -> Iterator[object]:
    """The cells of a row: rate and 99th percentile of each, and the ratio."""
    turns = take_turns(
        targets, options.repeats, lambda name: _load(targets[name], connections, options.seconds, scratch / "times")
    )
    for several in turns.values():
        rates, times_ms = zip(*several, strict=True)
        yield f"{spread_of(rates)}, {median(times_ms):.3g}"
    yield spread_of(mine[0] / theirs[0] for mine, theirs in zip(turns[HEED], turns[TRITON_GRPC], strict=True))


def _targets(workload: Workload, port: int, models: Path, scratch: Path) -> Iterator[tuple[str, list[str]]]:
    """h2load's arguments for each way to post the workload."""
    http = bodies(workload, workload.graph, "v2-binary")
    body = scratch / f"{workload.name}.http"
    body.write_bytes(http.texts[0])
    headers = [text for name, value in http.headers.items() for text in ("-H", f"{name}: {value}")]
    for name, number in ((HEED, port), (TRITON_HTTP, port + 1)):
        yield name, ["--h1", "-d", str(body), *headers, f"http://127.0.0.1:{number}/v2/models/{workload.graph}/infer"]
    address = f"127.0.0.1:{port + 2}"
    message = _grpc_body(workload, address, models, scratch / f"{workload.name}.grpc")
    yield TRITON_GRPC, ["-d", str(message), *GRPC, f"http://{address}/{METHOD}"]


def _grpc_body(workload: Workload, address: str, models: Path, folder: Path) -> Path:
    """The file with the request as a gRPC message; Triton's answer to it is compared with ONNX Runtime's outputs.

    Raises:
        RuntimeError: it differs.
    """
    folder.mkdir()
    np.savez(folder / "inputs.npz", **workload.tensors[0])
    python = CACHE / "tritonclient" / "bin" / "python"
    environment.prepare(python, CLIENT)
    subprocess.run([python, PEERS / "grpc_call.py", address, workload.graph, folder, *workload.outputs], check=True)
    (expected,) = in_process.expected_outputs(workload, models)
    difference = max_difference(dict(np.load(folder / "outputs.npz")), expected)
    if not difference <= TOLERANCE:
        raise RuntimeError(f"{workload.name}: the outputs differ from ONNX Runtime's by {difference}")
    return folder / "message"


def _load(arguments: list[str], connections: int, seconds: int, times: Path) -> tuple[float, float]:
    """Requests a second, and the 99th percentile of the latency in milliseconds.

    Raises:
        RuntimeError: a request failed, or h2load did.
    """
    times.unlink(missing_ok=True)
    command = ["h2load", "-t", "1", "-c", str(connections), "-m", "1", "-D", str(seconds), "--warm-up-time", "1"]
    done = subprocess.run([*command, "--log-file", str(times), *arguments], capture_output=True, text=True)
    found = re.search(r"(\d+) succeeded, 0 failed, 0 errored, 0 timeout", done.stdout)
    if not found:
        raise RuntimeError(f"h2load {' '.join(arguments)}:\n{done.stdout[-800:]}{done.stderr[-800:]}")
    logged = [line.split() for line in times.read_text().splitlines()]  # with those cut off at the end; it may be empty
    microseconds = [int(line[2]) for line in logged if line[1] == "200"]
    return int(found[1]) / seconds, float(np.percentile(microseconds, 99)) / 1e3 if microseconds else np.nan


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.grpc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--triton-binary", type=Path, default=CONTAINER / "bin" / "tritonserver", help="default: that of its container")
    add("--triton-backends", type=Path, default=CONTAINER / "backends", help="folder that has onnxruntime")
    add("--triton-libraries", default="", metavar="PATH", help="LD_LIBRARY_PATH of Triton")
    add("--setting", default="triton-2x1", help="of Triton, as benchmarks.serving names them (%(default)s)")
    add("--concurrency", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 64], metavar="C,...")
    add("--repeats", type=int, default=5, help="turns of each server in each cell (default 5)")
    add("--seconds", type=int, default=3, help="duration of a turn (default 3)")
    add("--port", type=int, default=18300, help="first of three ports (default 18300)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
