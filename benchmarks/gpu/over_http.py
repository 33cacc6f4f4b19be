"""Throughput over HTTP: ``heed loadtest`` compares a server on the provider with one on the CPU."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.cells import BLOCK, D, Http
from benchmarks.gpu.rows import ROOT
from benchmarks.server import served

TIMEOUT_S = 180  # for one cell
WINDOW, MAX_WARMUP = 1 / 8, 3 / 4  # of the duration of the measurement


def measure_all(cells: Sequence[Http], repository: Path, provider: str) -> Iterator[tuple[Http, dict[str, Any]]]:
    """Measure each cell; both servers run all the time, with one worker and default settings."""
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        copy = Path(scratch) / "repository"
        shutil.copytree(repository / BLOCK, copy / BLOCK)
        try:
            ports = [stack.enter_context(served(copy, "--provider", on)).port for on in (provider, "cpu")]
        except RuntimeError as error:
            yield from ((cell, {"failed": f"a server did not start: {str(error).strip()[-400:]}"}) for cell in cells)
            return
        for cell in cells:
            yield cell, _load(cell, ports, Path(scratch) / "out.json")


def _load(cell: Http, ports: Sequence[int], file: Path) -> dict[str, Any]:
    first, second = (f"http://127.0.0.1:{port}" for port in ports)
    sizes = {"batch": cell.batch, "heads": cell.heads, "m": cell.n, "n": cell.n, "d_k": D, "d_v": D}
    outputs = "output" if cell.path == "output" else "output,weights"
    command = [
        sys.executable, "-m", "loadtest", first, "--compare", second, "--block", BLOCK, "--api", "v2",
        "--encoding", cell.encoding, "--outputs", outputs, "--concurrency", str(cell.connections), "--timeout", "60",
        "--seconds", str(cell.seconds), "--rounds", str(cell.rounds), "--window", str(WINDOW * cell.seconds),
        "--max-warmup", str(MAX_WARMUP * cell.seconds),
        "--processes", "2", "--json", str(file), *(f"--size={symbol}={size}" for symbol, size in sizes.items()),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {TIMEOUT_S} s"}
    if done.returncode:
        return {"failed": f"heed loadtest: status {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}"}
    document = json.loads(file.read_text())
    on_provider, on_cpu = document["results"]
    if errors := {**on_provider["errors"], **on_cpu["errors"]}:
        return {"failed": f"not every answer was 200: {errors}"}
    return asdict(cell) | {
        "provider": _summary(on_provider),
        "cpu": _summary(on_cpu),
        "ratio": document["ratios"][on_provider["level"]]["rate"],
        "rounds": document["rounds"],
    }


def _summary(result: dict[str, Any]) -> dict[str, Any]:
    return {key: result[key] for key in ("rate", "p50", "p99", "requests", "notes", "server_side")}
