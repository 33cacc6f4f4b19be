"""Throughput over HTTP: a server on the provider and one on the CPU, in turns under the load of ``heed loadtest``."""

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
from benchmarks.soak.served import served

SECONDS = 180  # for one cell
WINDOW, PATIENCE = 1 / 8, 3 / 4  # of the warm-up, in seconds of the measurement


def measure_all(cells: Sequence[Http], repository: Path, provider: str) -> Iterator[tuple[Http, dict[str, Any]]]:
    """What came of each; both servers are up all the while, with one worker and settings as they come."""
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        own = Path(scratch) / "repository"
        shutil.copytree(repository / BLOCK, own / BLOCK)
        try:
            ports = [stack.enter_context(served(own, "--provider", on)).port for on in (provider, "cpu")]
        except RuntimeError as error:
            yield from ((cell, {"failed": f"a server did not start: {str(error).strip()[-400:]}"}) for cell in cells)
            return
        for cell in cells:
            yield cell, _loaded(cell, ports, Path(scratch) / "out.json")


def _loaded(cell: Http, ports: Sequence[int], file: Path) -> dict[str, Any]:
    first, second = (f"http://127.0.0.1:{port}" for port in ports)
    sizes = {"batch": cell.batch, "heads": cell.heads, "m": cell.n, "n": cell.n, "d_k": D, "d_v": D}
    outputs = "output" if cell.path == "output" else "output,weights"
    command = [
        sys.executable, "-m", "loadtest", first, "--compare", second, "--block", BLOCK, "--face", "v2",
        "--encoding", cell.encoding, "--outputs", outputs, "--concurrency", str(cell.connections), "--timeout", "60",
        "--seconds", str(cell.seconds), "--rounds", str(cell.rounds), "--window", str(WINDOW * cell.seconds),
        "--patience", str(PATIENCE * cell.seconds),
        "--processes", "2", "--json", str(file), *(f"--size={symbol}={size}" for symbol, size in sizes.items()),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {SECONDS} s"}
    if done.returncode:
        return {"failed": f"heed loadtest: status {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}"}
    document = json.loads(file.read_text())
    on_provider, on_cpu = document["results"]
    if trouble := {**on_provider["errors"], **on_cpu["errors"]}:
        return {"failed": f"not every answer was 200: {trouble}"}
    return asdict(cell) | {
        "provider": _told(on_provider),
        "cpu": _told(on_cpu),
        "ratio": document["ratios"][on_provider["level"]]["rate"],
        "rounds": document["rounds"],
    }


def _told(result: dict[str, Any]) -> dict[str, Any]:
    kept = ("rate", "p50", "p99", "requests", "notes", "server_side")
    return {name: result[name] for name in kept}
