"""Servers in this process, with two clients."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.http import fast_path
from service.model.model import Model
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
    for name, addend in (("adder", 1.0), ("adder%31", 5.0), ("adder1", 9.0)):
        graphs.adder(folder / name / "1", addend)
    graphs.identity(folder / "identity" / "1", "FP32")
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
def threaded(models) -> Iterator[ServerThread]:
    """A server that runs all in threads."""
    with serving_in_process(models, inline_ns=0) as service:
        yield service


@pytest.fixture
def gate(monkeypatch) -> Iterator[threading.Event]:
    """What the runs of the server ``threaded`` wait for."""
    event, run = threading.Event(), Model.run

    def wait_and_run(*arguments):
        assert event.wait(60)
        return run(*arguments)

    monkeypatch.setattr(Model, "run", wait_and_run)
    yield event
    event.set()
