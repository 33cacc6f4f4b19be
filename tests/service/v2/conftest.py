"""A repository of our blocks and of foreign models, and a server over it that lets clients control it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import serving
from tests.service.v2 import graphs


@pytest.fixture(scope="session")
def zoo(repository, tmp_path_factory) -> Path:
    """Every built-in block, and one foreign model of each sort."""
    folder = tmp_path_factory.mktemp("zoo")
    shutil.copytree(repository, folder, dirs_exist_ok=True)
    graphs.mixed(folder / "mixed" / "1")
    graphs.adder(folder / "adder" / "1")
    graphs.adder(folder / "adder" / "2", 2.0)
    graphs.product(folder / "product" / "1")
    graphs.scalar(folder / "scalar" / "1")
    graphs.slow(folder / "slow" / "1", 40)
    for name in graphs.ONNX:
        graphs.identity(folder / f"identity_{name}" / "1", name)
    return folder


@pytest.fixture(scope="session")
def server(zoo) -> Iterator[httpx.Client]:
    with serving(zoo, "--versions", "all", "--model-control-mode", "explicit") as client:
        yield client


@pytest.fixture(scope="session")
def address(server) -> str:
    """host:port, as tritonclient wants it."""
    return f"{server.base_url.host}:{server.base_url.port}"
