"""Who is measured: Heed, the floor, ten lines of FastAPI, and servers from PyPI; each with two workers."""

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnxruntime

from benchmarks.serving.workloads import Workload

FACES = ("json", "binary", "block-json", "native")
V2 = "/v2/models/{model}/infer"
V2_FACES = {"json": ("v2-json", V2), "binary": ("v2-binary", V2)}
HEED_FACES = V2_FACES | {"block-json": ("v2-json", V2), "native": ("native", "/v1/attention/{model}")}
PLAIN = {"json": ("plain", "/{model}")}
PEERS = Path(__file__).with_name("peers")
UVICORN = ("{python}", "-m", "uvicorn", "--host", "127.0.0.1", "--port", "{port}", "--workers", "2", "--no-access-log")
RUNTIME = (f"onnxruntime=={onnxruntime.__version__}", "orjson")


@dataclass(frozen=True)
class Server:
    """``faces`` are those it has: what the bodies are written in, and where they go.

    ``requirements`` are of an environment of its own; without, it runs in Heed's. ``url``: it runs already.
    """

    name: str
    command: tuple[str, ...]
    faces: Mapping[str, tuple[str, str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    blocks: bool = False
    url: str = ""

    def has(self, face: str, workload: Workload) -> bool:
        """Heed's blocks have a V2 JSON face of their own only where that is not ``json`` already."""
        return face in self.faces and not (face == "block-json" and workload.by_block)

    def model(self, workload: Workload, face: str) -> str:
        of_block = face in ("block-json", "native") or (self.blocks and workload.by_block)
        return workload.block if of_block else workload.graph

    def path(self, workload: Workload, face: str) -> str:
        path = self.faces[face][1]
        return path.format(model=self.model(workload, face), workload=workload.name, face=face)

    def started_by(self, python: Path, port: int, models: Path) -> list[str]:
        return [part.format(python=python, port=port, models=models, peers=PEERS) for part in self.command]

    def surroundings(self, python: Path, port: int, models: Path, scratch: Path) -> dict[str, str]:
        """The environment of its processes: ours, less what could set Heed."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("HEED_", "BENCH_"))}
        folder = scratch / self.name
        folder.mkdir(exist_ok=True)
        return ours | {
            "PATH": f"{python.parent}:{ours.get('PATH', '')}",
            "TMPDIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "ORT_DISABLE_TELEMETRY": "1",
            "BENCH_MODELS": str(models),
            "BENCH_PORT": str(port),
            "BENCH_ANSWERS": str(scratch / "answers"),
            **self.environment,
        }


def heed(name: str = "heed", flags: str = "") -> Server:
    """Heed with two workers on the CPU, and ``flags`` beside."""
    command = ("{python}", "-m", "service", "--port", "{port}", "--model-repository", "{models}", "--workers", "2")
    return Server(name, (*command, "--provider", "cpu", *shlex.split(flags)), HEED_FACES, blocks=True)


def running(name: str, url: str) -> Server:
    """A V2 server that serves the models already."""
    return Server(name, (), V2_FACES, url=url.rstrip("/"))


SERVERS = {
    server.name: server
    for server in (
        heed(),
        Server(
            "floor", (*UVICORN, "benchmarks.serving.peers.floor:app"),
            {face: ("v2-" + face, "/{workload}/{face}") for face in ("json", "binary")},
        ),
        Server(
            "fastapi", (*UVICORN, "benchmarks.serving.peers.lists:app"), PLAIN,
        ),
        Server(
            "fastapi-typed", (*UVICORN, "benchmarks.serving.peers.lists:app"), {"json": ("plain", "/typed/{model}")},
        ),
        Server(
            "mlserver", ("{python}", "{peers}/mlserver_server.py"), {"json": V2_FACES["json"]},
            {"BENCH_WORKERS": "2"}, ("mlserver==1.7.1", "uvloop<0.22", *RUNTIME),
        ),
        Server(
            "mlserver-inline", ("{python}", "{peers}/mlserver_server.py"), {"json": V2_FACES["json"]},
            {"BENCH_WORKERS": "0"}, ("mlserver==1.7.1", "uvloop<0.22", *RUNTIME),
        ),
        Server(
            "litserve", ("{python}", "{peers}/litserve_server.py"), PLAIN, {}, ("litserve==0.2.19", *RUNTIME),
        ),
    )
}  # fmt: skip
IN_PROCESS = "in-process"
NAMES = (*SERVERS, IN_PROCESS)


def python_of(server: Server, folder: Path) -> Path:
    """The interpreter of its environment."""
    return folder / _package(server) / "bin" / "python" if server.requirements else Path(sys.executable)


def _package(server: Server) -> str:
    return server.requirements[0].partition("==")[0]
