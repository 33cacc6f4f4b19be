"""A server with small limits, over honest models and harmful ones; after each test it answers and is no larger."""

from pathlib import Path

import httpx
import pytest
from onnx import helper

from tests.support import graphs
from tests.support.hostile import GROWTH, RECEIVE_S, SECRET, alive
from tests.support.server import MIB, started
from tests.support.waiting import until

LIMITS = {
    "--workers": 1,
    "--max-concurrent-runs": 1,
    "--model-control-mode": "explicit",
    "--max-body-bytes": 4 * MIB,
    "--max-header-bytes": 8192,
    "--read-timeout-seconds": RECEIVE_S,
    "--max-memory-bytes": 256 * MIB,
    "--ready-when": "any",  # of the models some are refused
}


@pytest.fixture(scope="session")
def models(repository, tmp_path_factory) -> Path:
    """An honest model, a block, and some that cannot be loaded."""
    folder = tmp_path_factory.mktemp("models")
    graphs.adder(folder / "adder" / "1")
    (folder / "scaled_dot_product").symlink_to(repository / "scaled_dot_product")
    (folder / "secret.bin").write_bytes(SECRET.encode() * 100)
    stranger = [helper.make_node("Exfiltrate", ["x"], ["y"], domain="evil")]
    circle = [helper.make_node("Identity", [one], [other]) for one, other in (("y", "z"), ("z", "y"))]
    for name, nodes in (("stranger", stranger), ("circle", circle)):
        graphs.write(folder / name / "1", nodes, [("x", "FP32", [3])], [("y", "FP32", [3])])
    (folder / "unreadable" / "1").mkdir(parents=True)
    (folder / "unreadable" / "1" / "model.onnx").symlink_to("/proc/self/mem")  # even to root
    return folder


@pytest.fixture(scope="session")
def service(models, tmp_path_factory):
    flags = [str(part) for flag in LIMITS.items() for part in flag]
    with started(models, tmp_path_factory.mktemp("log") / "log", *flags) as service:
        for _ in range(200):
            alive(service)
        yield service
        assert "Traceback" not in service.log.read_text()


@pytest.fixture(autouse=True)
def unharmed(service):
    before = service.resident()
    yield
    alive(service)
    until(lambda: service.resident() - before < GROWTH)  # an idle server looks every 5 s what it can free


@pytest.fixture
def client(service):
    with httpx.Client(base_url=service.url, timeout=30) as client:
        yield client
