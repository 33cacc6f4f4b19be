"""One turn: load on one server in one cell, with its latency, processor time and memory."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import httpx
import psutil

from benchmarks import ROOT
from benchmarks.sampling import sampled
from benchmarks.server import Processes, machine_cpu_s, started
from benchmarks.serving import in_process
from benchmarks.serving.cell import Cell, Timing
from benchmarks.serving.formats import bodies, max_difference, parse_response, v2_response
from benchmarks.serving.load import load
from benchmarks.serving.servers import IN_PROCESS, Server, python_of
from benchmarks.serving.workloads import WORKLOADS, Workload

TOLERANCE = 1e-4
MEMORY_S = 0.25  # interval between samples of the memory


class RunningServer:
    """A server that accepts requests; checks its responses in each cell before the load."""

    def __init__(self, server: Server, base_url: str, processes: Processes, models: Path, scratch: Path) -> None:
        self.server = server
        self.processes = processes
        self._base_url, self._models, self._scratch = base_url, models, scratch
        self._checked: dict[tuple[str, str, bool], tuple[list[Path], dict[str, str]]] = {}  # files and headers

    def check(self, workload: Workload, format: str, with_id: bool = False) -> None:
        """Compare the response to every body with ONNX Runtime's outputs, once; write the bodies to files for the load.

        Raises:
            ValueError: the server responds with an error or wrong numbers.
            httpx.TransportError: the server does not respond.
        """
        key = workload.name, format, with_id
        if key in self._checked:
            return
        requests = bodies(workload, self.server.model(workload, format), self.server.formats[format][0], with_id)
        url = self._base_url + self.server.path(workload, format)
        expected_outputs = in_process.expected_outputs(workload, self._models)
        with httpx.Client(timeout=120) as client:
            for text, expected in zip(requests.texts, expected_outputs, strict=True):
                response = client.post(url, content=text, headers=requests.headers)
                if response.status_code != 200:
                    raise ValueError(f"HTTP {response.status_code}: {response.text[:300]}")
                if self.server.name == "floor":
                    continue
                length = response.headers.get("inference-header-content-length")
                actual = parse_response(response.content, length and int(length), workload.outputs)
                if not (difference := max_difference(actual, expected)) <= TOLERANCE:
                    raise ValueError(f"the outputs differ from ONNX Runtime's by {difference}")
        folder = self._scratch / "bodies" / self.server.name / "-".join(map(str, key))
        folder.mkdir(parents=True)
        files = [folder / str(i) for i in range(len(requests.texts))]
        for file, text in zip(files, requests.texts, strict=True):
            file.write_bytes(text)
        self._checked[key] = files, requests.headers

    def about(self) -> dict[str, str]:
        """The reported versions of a V2 server that is not a Python package; empty for others."""
        if not self.server.about:
            return {}
        return {"version": httpx.get(f"{self._base_url}/v2").json()["version"], **self.server.about}

    def turn(self, cell: Cell, timing: Timing) -> dict[str, Any]:
        workload, with_id = WORKLOADS[cell.workload], cell.ids != "none"
        self.check(workload, cell.format, with_id)
        files, headers = self._checked[cell.workload, cell.format, with_id]
        url = self._base_url + self.server.path(workload, cell.format)
        arguments = url, files, headers, cell.connections
        if timing.warmup:
            load(*arguments, timing.warmup, cell.ids)
            self.processes.settle()
        with sampled(self.processes.resident_bytes, MEMORY_S) as resident_bytes:
            before = self._clocks()
            result = load(*arguments, timing.seconds, cell.ids)
            machine_s, server_s, own_s, wall_s = (
                now - start for now, start in zip(self._clocks(), before, strict=True)
            )
        settled = self.processes.settle()
        if self.processes.all():
            other_cores = (machine_s - server_s - own_s - result["wrk_cpu_s"]) / wall_s
            result |= {"server_cpu_s": server_s, "rss_peak_bytes": max(resident_bytes), "other_cores": other_cores}
        return result | {"settled": settled}

    def _clocks(self) -> tuple[float, float, float, float]:
        """Processor seconds of the machine, the server and this process; seconds of the wall clock."""
        return machine_cpu_s(), self.processes.cpu_s(), sum(psutil.Process().cpu_times()[:2]), perf_counter()


class InProcess:
    """The baseline without HTTP, with the interface of a server: one process for one connection, two for more."""

    def __init__(self, models: Path) -> None:
        self._models = models

    def turn(self, cell: Cell, timing: Timing) -> dict[str, Any]:
        processes = 1 if cell.connections == 1 else 2
        arguments = [self._models, cell.workload, processes, timing.seconds, max(1, timing.warmup)]
        command = [sys.executable, "-m", "benchmarks.serving.in_process", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr[-500:])
        result: dict[str, Any] = json.loads(done.stdout)
        return result


Contestant = RunningServer | InProcess


def run_turn(contestant: Contestant, cell: Cell, timing: Timing) -> dict[str, Any]:
    """Run a turn, and repeat it if other processes disturb it; return the quietest, or a row with ``failed``."""
    attempts: list[dict[str, Any]] = []
    while not attempts or (len(attempts) < timing.attempts and other_cores(attempts[-1]) > timing.quiet):
        try:
            attempts.append(contestant.turn(cell, timing))
        except (ValueError, RuntimeError, httpx.TransportError) as error:
            return asdict(cell) | {"failed": f"{type(error).__name__}: {error}"[:500]}
    quietest = min(attempts, key=other_cores)
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in quietest.items()}
    return asdict(cell) | rounded | {"seconds": timing.seconds, "attempts": len(attempts)}


def other_cores(turn: dict[str, Any]) -> float:
    """Cores that neither the server nor the load used; 0 if the server's processes are not known."""
    return float(turn.get("other_cores", 0.0))


@contextmanager
def start_contestant(
    name: str, server: Server | None, first: Cell, models: Path, scratch: Path, venvs: Path, port: int
) -> Iterator[Contestant]:
    """Start a server, and wait until it responds correctly in the cell ``first``.

    Raises:
        RuntimeError: the server does not; the message ends with its log.
    """
    if name == IN_PROCESS or server is None:
        yield InProcess(models)
        return
    with ExitStack() as stack:
        processes, log = Processes(), scratch / f"{name}.log"
        if server.command:
            _require_free(port)
            python = python_of(server, venvs)
            environment = server.process_environment(python, port, models, scratch)
            command = server.command_line(python, port, models)
            processes = stack.enter_context(started(command, environment, ROOT, log))
        running = RunningServer(server, server.url or f"http://127.0.0.1:{port}", processes, models, scratch)
        _wait_until_correct(running, first, log)
        yield running


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise RuntimeError(f"port {port} is in use; --port selects others")


def _wait_until_correct(running: RunningServer, first: Cell, log: Path, timeout_s: float = 90) -> None:
    end_s, reason = monotonic() + timeout_s, "it did not start"
    while monotonic() < end_s and (running.server.url or running.processes.all()):
        try:
            running.check(WORKLOADS[first.workload], first.format)
            running.processes.settle(20)  # until its other workers have started
            return
        except (ValueError, httpx.TransportError) as error:
            reason = str(error)
            sleep(0.2)
    log_end = log.read_text(errors="replace")[-800:] if log.exists() else ""
    raise RuntimeError(f"{running.server.name} is not ready: {reason}\n{log_end}")


def write_floor_responses(folder: Path, models: Path, workloads: list[Workload]) -> None:
    """Write the responses of the floor: <workload>/<format>/<length of the request in bytes>."""
    for workload in workloads:
        expected = in_process.expected_outputs(workload, models)
        for format in ("json", "binary"):
            subfolder = folder / workload.name / format
            subfolder.mkdir(parents=True)
            for with_id in (False, True):
                requests = bodies(workload, workload.graph, f"v2-{format}", with_id)
                for text, arrays in zip(requests.texts, expected, strict=True):
                    content, _ = v2_response(arrays, workload.graph, format == "binary")
                    (subfolder / str(len(text))).write_bytes(content)
