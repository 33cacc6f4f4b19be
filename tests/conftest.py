"""The exported blocks, and a real server over them, shared by the whole run.

``HEED_TEST_PROVIDER`` (cpu, unless it says cuda) is where servers run models; ``HEED_TEST_REPOSITORY`` is a repository
with every built-in block, to use instead of exporting them.
"""

import gc
import json
import logging.config
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import onnx
import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, settings

from export.artifact import export_block
from export.fast_path import CUDA
from export.graph import export_graph
from models.catalogue import BLOCKS
from scripts.exported import exported
from tests.support.halves import HALVES

torch.set_num_threads(1)  # the tests are spread over the CPUs; more threads only spin beside other workers
settings.register_profile("heed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("heed")
PROVIDER = os.environ.get("HEED_TEST_PROVIDER", "cpu")
EXPORTED = os.environ.get("HEED_TEST_REPOSITORY")
EXPORTING = Path(__file__).with_name("export")
START = 60 if PROVIDER == "cpu" else 300  # seconds, at most


def pytest_configure() -> None:
    """Refuse to configure logging in this process: that closes the log handlers of all libraries."""

    def refused(*_: object, **__: object) -> None:
        pytest.fail("logging.config closes every log handler of the process: uvicorn.Config takes log_config=None")

    logging.config.dictConfig = logging.config.fileConfig = refused


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that export come first: they take longest, and at the end one process would wait for the other."""
    items.sort(key=lambda item: EXPORTING not in item.path.parents)


def pytest_collection_finish() -> None:
    """Take what was imported out of garbage collection: exporting otherwise spends a tenth of its time there."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(scope="session")
def once(tmp_path_factory, worker_id) -> Callable[[str, Callable[[Path], object]], Path]:
    """A folder by its name, filled once for all of pytest-xdist's workers, which read it and never write."""
    own = tmp_path_factory.getbasetemp()

    def filled(name: str, fill: Callable[[Path], object]) -> Path:
        folder = (own if worker_id == "master" else own.parent) / name
        done = folder.with_suffix(".done")
        with FileLock(folder.with_suffix(".lock")):
            if not done.exists():
                fill(folder)
                done.touch()
        return folder

    return filled


@pytest.fixture(scope="session")
def repository() -> Path:
    """Every built-in block, which is read and never written."""
    return Path(EXPORTED) if EXPORTED else exported()


@pytest.fixture(scope="session")
def two_blocks(repository, tmp_path_factory) -> Path:
    """``dot_product`` and ``scaled_dot_product``, which a server loads in half the time that it takes for all."""
    folder = tmp_path_factory.mktemp("two_blocks")
    for name in ("dot_product", "scaled_dot_product"):
        shutil.copytree(repository / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def halves(once) -> Path:
    """Two blocks in half precision: ``attention_float16``, of few options, and ``efficient_bfloat16``."""

    def fill(folder: Path) -> None:
        for block in HALVES.values():
            export_block(block, folder)

    return once("halves", fill)


@pytest.fixture(scope="session")
def fused(once, repository) -> Path:
    """``scaled_dot_product`` in float32 with the fast paths of CUDA: the folder of its version."""
    block = BLOCKS["scaled_dot_product"]

    def fill(folder: Path) -> None:
        version = folder / block.name / "1"
        shutil.copytree(repository / block.name / "1", version)
        for name, path in CUDA.items():
            graph = export_graph(block, block.build(), *path.graph(block), path)
            card = {"block": block.name, "fast_path": name} | path.card()
            onnx.helper.set_model_props(graph, {"heed": json.dumps(card)})
            onnx.save(graph, version / f"{name}.onnx")

    return once("fused", fill) / block.name / "1"


@pytest.fixture
def free_port() -> int:
    """The first of eight; another process may still take one of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def serving(repository: Path, *flags: str, wait: bool = True) -> Iterator[httpx.Client]:
    """A client of a fresh ``heed serve`` process over ``repository``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "service", "--port", str(port), "--model-repository", str(repository), *flags]
    environment = {"HEED_PROVIDER": PROVIDER, **os.environ}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            if wait:
                until_ready(client, process)
            yield client
    finally:
        process.terminate()
        process.communicate(timeout=30)


def until_ready(client: httpx.Client, process: subprocess.Popen, seconds: float = START) -> None:
    """Returns when the server is ready; fails with its log if it ends first."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"the server ended: {process.stdout.read()}")
        try:
            if client.get("/v2/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    pytest.fail("the server was not ready in time")


@pytest.fixture(scope="session")
def client(repository) -> Iterator[httpx.Client]:
    with serving(repository) as client:
        yield client
