"""The servers to measure: Heed, the floor, ten lines of FastAPI, Triton, servers from PyPI; on two CPUs each."""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnxruntime

from benchmarks.serving.workloads import Workload

FORMATS = ("json", "binary", "block-json", "native")
V2 = "/v2/models/{model}/infer"
V2_FORMATS = {"json": ("v2-json", V2), "binary": ("v2-binary", V2)}
HEED_FORMATS = V2_FORMATS | {"block-json": ("v2-json", V2), "native": ("native", "/v1/attention/{model}")}
PLAIN = {"json": ("plain", "/{model}")}
PEERS = Path(__file__).with_name("peers")
UVICORN = ("{python}", "-m", "uvicorn", "--host", "127.0.0.1", "--port", "{port}", "--workers", "2", "--no-access-log")
RUNTIME = (f"onnxruntime=={onnxruntime.__version__}", "orjson")


@dataclass(frozen=True)
class Server:
    """A server. ``formats`` maps each format that it supports to its protocol and path.

    A server with ``requirements`` runs in its own virtual environment, others in Heed's. One with ``url`` runs already.
    ``about`` is reported in place of the versions of its packages.
    """

    name: str
    command: tuple[str, ...]
    formats: Mapping[str, tuple[str, str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    blocks: bool = False
    url: str = ""
    about: Mapping[str, str] = field(default_factory=dict)

    def supports(self, format: str, workload: Workload) -> bool:
        """Whether the server supports ``format``; ``block-json`` is omitted where it is the same as ``json``."""
        return format in self.formats and not (format == "block-json" and workload.by_block)

    def model(self, workload: Workload, format: str) -> str:
        use_block = format in ("block-json", "native") or (self.blocks and workload.by_block)
        return workload.block if use_block else workload.graph

    def path(self, workload: Workload, format: str) -> str:
        path = self.formats[format][1]
        return path.format(model=self.model(workload, format), workload=workload.name, format=format)

    def command_line(self, python: Path, port: int, models: Path) -> list[str]:
        return [part.format(python=python, port=port, models=models, peers=PEERS) for part in self.command]

    def process_environment(self, python: Path, port: int, models: Path, scratch: Path) -> dict[str, str]:
        """The environment variables of its processes: this process's, without settings of Heed."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HEED_", "BENCH_"))}
        folder = scratch / self.name
        folder.mkdir(exist_ok=True)
        return inherited | {
            "PATH": f"{python.parent}:{inherited.get('PATH', '')}",
            "TMPDIR": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "ORT_DISABLE_TELEMETRY": "1",
            "BENCH_MODELS": str(models),
            "BENCH_PORT": str(port),
            "BENCH_ANSWERS": str(scratch / "answers"),
            **self.environment,
        }


def heed(name: str = "heed", flags: str = "") -> Server:
    """Heed with two workers on the CPU, and additional ``flags``; words like VARIABLE=VALUE are its environment."""
    words = shlex.split(flags)
    environment = dict(word.split("=", 1) for word in words if re.match("[A-Z_]+=", word))
    flags_only = (word for word in words if not re.match("[A-Z_]+=", word))
    command = ("{python}", "-m", "service", "--port", "{port}", "--model-repository", "{models}", "--workers", "2")
    return Server(name, (*command, "--provider", "cpu", *flags_only), HEED_FORMATS, environment, blocks=True)


def external(name: str, url: str) -> Server:
    """A V2 server that is already running with the models."""
    return Server(name, (), V2_FORMATS, url=url.rstrip("/"))


SERVERS = {
    server.name: server
    for server in (
        heed(),
        Server(
            "floor", (*UVICORN, "benchmarks.serving.peers.floor:app"),
            {format: ("v2-" + format, "/{workload}/{format}") for format in ("json", "binary")},
        ),
        Server(
            "fastapi", (*UVICORN, "benchmarks.serving.peers.lists:app"), PLAIN,
        ),
        Server(
            "fastapi-typed", (*UVICORN, "benchmarks.serving.peers.lists:app"), {"json": ("plain", "/typed/{model}")},
        ),
        Server(
            "mlserver", ("{python}", "{peers}/mlserver_server.py"), {"json": V2_FORMATS["json"]},
            {"BENCH_WORKERS": "2"}, ("mlserver==1.7.1", "uvloop<0.22", *RUNTIME),
        ),
        Server(
            "mlserver-inline", ("{python}", "{peers}/mlserver_server.py"), {"json": V2_FORMATS["json"]},
            {"BENCH_WORKERS": "0"}, ("mlserver==1.7.1", "uvloop<0.22", *RUNTIME),
        ),
        Server(
            "litserve", ("{python}", "{peers}/litserve_server.py"), PLAIN, {}, ("litserve==0.2.19", *RUNTIME),
        ),
    )
}  # fmt: skip
IN_PROCESS = "in-process"
TRITON = "triton"  # with the best of its settings in each cell
NAMES = (*SERVERS, TRITON, IN_PROCESS)
TRITON_SETTINGS = {  # instances of a model x threads of each, with and without batching
    f"{instances}x{threads}" + "-batching" * (batching == "on"): (str(instances), str(threads), batching)
    for instances, threads in ((1, 1), (2, 1), (1, 2))
    for batching in ("off", "on")
}


def triton_settings(binary: Path, backends: Path, libraries: str) -> list[Server]:
    """Triton with its C++ ONNX Runtime backend, in each of ``TRITON_SETTINGS``."""
    runtime = next(iter(sorted((backends / "onnxruntime").glob("libonnxruntime.so.*.*"))), None)
    about = {"binary": str(binary), "libonnxruntime": runtime.name if runtime else "unknown"}
    command = ("{python}", "{peers}/triton_server.py", str(binary), str(backends))
    return [
        Server(
            f"{TRITON}-{name}",
            (*command, *setting),
            V2_FORMATS,
            {"BENCH_TRITON_LIBRARIES": libraries},
            about=about,
        )
        for name, setting in TRITON_SETTINGS.items()
    ]


def python_of(server: Server, folder: Path) -> Path:
    """The path of the interpreter of its virtual environment, which lies in ``folder``."""
    if not server.requirements:
        return Path(sys.executable)
    return folder / server.requirements[0].partition("==")[0] / "bin" / "python"
