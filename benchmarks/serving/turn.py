"""One turn: one server, one cell, so many seconds of load, and what it cost."""

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

from benchmarks.serving import in_process
from benchmarks.serving.cell import Cell, Timing
from benchmarks.serving.faces import answer, bodies, understand, worst
from benchmarks.serving.graphs import ROOT
from benchmarks.serving.load import load
from benchmarks.serving.process import Processes, busy, peak_rss, started
from benchmarks.serving.servers import IN_PROCESS, Server, python_of
from benchmarks.serving.workloads import WORKLOADS, Workload

TOLERANCE = 1e-4


class Running:
    """A server that answers; knows where, and which of its answers have been compared already."""

    def __init__(self, server: Server, base: str, processes: Processes, models: Path, scratch: Path) -> None:
        self.server = server
        self.processes = processes
        self._base, self._models, self._scratch = base, models, scratch
        self._files: dict[tuple[str, str, bool], tuple[list[Path], dict[str, str]]] = {}

    def check(self, workload: Workload, face: str, with_id: bool = False) -> None:
        """Hold the answer to every body against ONNX Runtime's, once, and keep the bodies for the load.

        Raises:
            ValueError: an error, or wrong numbers.
            httpx.TransportError: no answer.
        """
        key = workload.name, face, with_id
        if key in self._files:
            return
        asked = bodies(workload, self.server.model(workload, face), self.server.faces[face][0], with_id)
        url = self._base + self.server.path(workload, face)
        with httpx.Client(timeout=120) as client:
            for text, right in zip(asked.texts, in_process.right(workload, self._models), strict=True):
                response = client.post(url, content=text, headers=asked.headers)
                if response.status_code != 200:
                    raise ValueError(f"HTTP {response.status_code}: {response.text[:300]}")
                if self.server.name == "floor":
                    continue
                length = response.headers.get("inference-header-content-length")
                got = understand(response.content, length and int(length), workload.outputs)
                if not worst(got, right) <= TOLERANCE:
                    raise ValueError(f"differs from ONNX Runtime's answer by {worst(got, right)}")
        folder = self._scratch / "bodies" / self.server.name / "-".join(map(str, key))
        folder.mkdir(parents=True)
        files = [folder / str(i) for i in range(len(asked.texts))]
        for file, text in zip(files, asked.texts, strict=True):
            file.write_bytes(text)
        self._files[key] = files, asked.headers

    def turn(self, cell: Cell, timing: Timing) -> dict[str, Any]:
        workload, with_id = WORKLOADS[cell.workload], cell.ids != "none"
        self.check(workload, cell.face, with_id)
        files, headers = self._files[cell.workload, cell.face, with_id]
        url = self._base + self.server.path(workload, cell.face)
        arguments = url, files, headers, cell.connections
        if timing.warmup:
            load(*arguments, timing.warmup, cell.ids)
            self.processes.settle()
        ours = psutil.Process()
        with peak_rss(self.processes) as peak:
            before = busy(), self.processes.cpu(), sum(ours.cpu_times()[:2]), perf_counter()
            found = load(*arguments, timing.seconds, cell.ids)
            worked, spent, own, wall = (
                now - then
                for now, then in zip(
                    (busy(), self.processes.cpu(), sum(ours.cpu_times()[:2]), perf_counter()), before, strict=True
                )
            )
        settled = self.processes.settle()
        if self.processes.all():
            others = (worked - spent - own - found["wrk_cpu_s"]) / wall
            found |= {"server_cpu_s": spent, "rss_peak_bytes": peak[0], "other_cores": others}
        return found | {"settled": settled}


class InProcess:
    """The yardstick without HTTP, as if it were a server: one process for one connection, two for more."""

    def __init__(self, models: Path) -> None:
        self._models = models

    def turn(self, cell: Cell, timing: Timing) -> dict[str, Any]:
        crew = 1 if cell.connections == 1 else 2
        arguments = [self._models, cell.workload, crew, timing.seconds, max(1, timing.warmup)]
        command = [sys.executable, "-m", "benchmarks.serving.in_process", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr[-500:])
        found: dict[str, Any] = json.loads(done.stdout)
        return found


Contestant = Running | InProcess


def take(contestant: Contestant, cell: Cell, timing: Timing) -> dict[str, Any]:
    """A turn, again while others disturb it; the quietest counts. What fails is answered as ``failed``."""
    found: list[dict[str, Any]] = []
    while not found or (len(found) < timing.attempts and others(found[-1]) > timing.quiet):
        try:
            found.append(contestant.turn(cell, timing))
        except (ValueError, RuntimeError, httpx.TransportError) as error:
            return asdict(cell) | {"failed": f"{type(error).__name__}: {error}"[:500]}
    quietest = min(found, key=others)
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in quietest.items()}
    return asdict(cell) | rounded | {"seconds": timing.seconds, "attempts": len(found)}


def others(turn: dict[str, Any]) -> float:
    """Cores that neither the server nor the load used; 0 where the server's processes are not known."""
    return float(turn.get("other_cores", 0.0))


@contextmanager
def contestant(
    name: str, server: Server | None, first: Cell, models: Path, scratch: Path, venvs: Path, port: int
) -> Iterator[Contestant]:
    """A server, started, and answering the first cell rightly.

    Raises:
        RuntimeError: it does not; the message ends with its log.
    """
    if name == IN_PROCESS or server is None:
        yield InProcess(models)
        return
    with ExitStack() as stack:
        processes, log = Processes(), scratch / f"{name}.log"
        if server.command:
            _must_be_free(port)
            python = python_of(server, venvs)
            environment = server.surroundings(python, port, models, scratch)
            command = server.started_by(python, port, models)
            processes = stack.enter_context(started(command, environment, ROOT, log))
        running = Running(server, server.url or f"http://127.0.0.1:{port}", processes, models, scratch)
        _until_right(running, first, log)
        yield running


def _must_be_free(port: int) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise RuntimeError(f"port {port} is taken; --port chooses others")


def _until_right(running: Running, first: Cell, log: Path, seconds: float = 90) -> None:
    end, why = monotonic() + seconds, "it did not start"
    while monotonic() < end and (running.server.url or running.processes.all()):
        try:
            running.check(WORKLOADS[first.workload], first.face)
            running.processes.settle(20)  # its other workers start, too
            return
        except (ValueError, httpx.TransportError) as error:
            why = str(error)
            sleep(0.2)
    said = log.read_text(errors="replace")[-800:] if log.exists() else ""
    raise RuntimeError(f"{running.server.name} is not ready: {why}\n{said}")


def write_answers(folder: Path, models: Path, workloads: list[Workload]) -> None:
    """What the floor answers: <workload>/<face>/<length of the request>."""
    for workload in workloads:
        found = in_process.right(workload, models)
        for face in ("json", "binary"):
            into = folder / workload.name / face
            into.mkdir(parents=True)
            for with_id in (False, True):
                asked = bodies(workload, workload.graph, f"v2-{face}", with_id)
                for text, arrays in zip(asked.texts, found, strict=True):
                    (into / str(len(text))).write_bytes(answer(arrays, workload.graph, face == "binary")[0])
