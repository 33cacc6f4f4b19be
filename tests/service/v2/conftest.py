"""A repository of our blocks and of foreign models, and a server over it that lets clients control it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import graphs
from tests.support.server import serving


@pytest.fixture(scope="session")
def foreign(tmp_path_factory) -> Path:
    """One foreign model of each sort."""
    folder = tmp_path_factory.mktemp("foreign")
    graphs.mixed(folder / "mixed" / "1")
    graphs.adder(folder / "adder" / "1")
    graphs.adder(folder / "adder" / "2", 2.0)
    graphs.product(folder / "product" / "1")
    graphs.scalar(folder / "scalar" / "1")
    graphs.slow(folder / "slow" / "1", 40)
    for name in ("rows", "columns", "detector"):
        getattr(graphs, name)(folder / name / "1")
    graphs.triton_simple(folder / "simple" / "1")
    graphs.triton_simple(folder / "simple_string" / "1", "BYTES")
    graphs.scikit_learn(folder / "iris" / "1")
    graphs.centred(folder / "centred" / "1")
    for name in graphs.ONNX:
        graphs.identity(folder / f"identity_{name}" / "1", name)
    return folder


@pytest.fixture(scope="session")
def zoo(repository, foreign, tmp_path_factory) -> Path:
    """Every built-in block, and the foreign models."""
    folder = tmp_path_factory.mktemp("zoo")
    for part in (repository, foreign):
        shutil.copytree(part, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def server(zoo) -> Iterator[httpx.Client]:
    with serving(zoo, "--versions", "all", "--model-control-mode", "explicit") as client:
        yield client


@pytest.fixture(scope="session")
def address(server) -> str:
    """host:port, as tritonclient wants it."""
    return f"{server.base_url.host}:{server.base_url.port}"
