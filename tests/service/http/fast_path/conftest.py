"""Servers in this process, with two clients."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.http import fast_path
from tests.support import graphs
from tests.support.in_process import Client, ServerThread, serving_in_process


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """A body that is late, as its client's machine is busy, does not leave the fast path for that."""
    monkeypatch.setattr(fast_path, "BODY_TIMEOUT_S", 60.0)


@pytest.fixture(scope="module")
def models(repository, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(repository / "scaled_dot_product", folder / "scaled_dot_product")
    graphs.adder(folder / "adder" / "1")
    graphs.adder(folder / "adder%31" / "1", 5.0)
    graphs.adder(folder / "adder1" / "1", 9.0)
    graphs.lookup(folder / "lookup" / "1")
    graphs.slow(folder / "slow" / "1", 200)
    return folder


@pytest.fixture(scope="module")
def service(models) -> Iterator[ServerThread]:
    with serving_in_process(models, allow_timeout_override=True) as service:
        yield service


@pytest.fixture
def client(service) -> Iterator[Client]:
    with Client(service) as client:
        yield client


@pytest.fixture
def other(service) -> Iterator[Client]:
    with Client(service) as client:
        yield client


@pytest.fixture(scope="module")
def hasty(models) -> Iterator[ServerThread]:
    """A server that waits two seconds for a request to come, and runs all in threads."""
    with serving_in_process(models, read_timeout_seconds=2, inline_microseconds=0) as service:
        yield service
