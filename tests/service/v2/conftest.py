"""A repository of some of our blocks and of foreign models, and a server over it that lets clients control it."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import graphs
from tests.support.server import serving

collect_ignore = [] if "PERF_ANALYZER" in os.environ else ["test_perf_analyzer.py"]
BLOCKS = ("scaled_dot_product", "dot_product", "multi_head", "linear", "efficient", "cosine", "encoder")


@pytest.fixture(scope="session")
def zoo(repository, tmp_path_factory) -> Path:
    """Some built-in blocks, and one foreign model of each sort."""
    folder = tmp_path_factory.mktemp("zoo")
    for name in BLOCKS:
        (folder / name).symlink_to(repository / name)
    for name in ("mixed", "product", "scalar", "rows", "columns", "detector"):
        getattr(graphs, name)(folder / name / "1")
    graphs.triton_simple(folder / "simple" / "1")
    graphs.triton_simple(folder / "simple_string" / "1", "BYTES")
    graphs.scikit_learn(folder / "iris" / "1")
    graphs.adder(folder / "adder" / "1")
    graphs.adder(folder / "adder" / "2", 2.0)
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
