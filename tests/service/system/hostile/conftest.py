"""A server with small limits, over honest models and harmful ones; after each test it answers and is no larger."""

from pathlib import Path

import httpx
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support import graphs
from tests.support.hostile import GROWTH, RECEIVE_S, SECRET, alive
from tests.support.server import MIB, started
from tests.support.waiting import until

FREED_S = 60  # at most, until a server that is idle has freed what is more: it looks every 5 s


@pytest.fixture(scope="module")
def models(repository, tmp_path_factory) -> Path:
    """An honest model, a block, and some whose files reach for what is not theirs."""
    folder = tmp_path_factory.mktemp("models")
    graphs.adder(folder / "adder" / "1")
    (folder / "scaled_dot_product").symlink_to(repository / "scaled_dot_product")
    secret = folder / "secret.bin"
    secret.write_bytes(SECRET.encode() * 100)
    outside(folder / "reaches_up" / "1", "../../secret.bin")
    outside(folder / "reaches_out" / "1", str(secret))
    outside(folder / "reaches_nothing" / "1", "weights.bin")
    node = helper.make_node("Exfiltrate", ["x"], ["y"], domain="evil")
    written(folder / "stranger" / "1", [node], domains=["evil"])
    nodes = [helper.make_node("Identity", ["y"], ["z"]), helper.make_node("Identity", ["z"], ["y"])]
    written(folder / "circle" / "1", nodes)
    (folder / "unreadable" / "1").mkdir(parents=True)
    (folder / "unreadable" / "1" / "model.onnx").symlink_to("/proc/self/mem")  # even to root
    return folder


def outside(folder: Path, location: str) -> None:
    """y = x + w, where w lies in another file."""
    weight = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "12")):
        weight.external_data.add(key=key, value=value)
    written(folder, [helper.make_node("Add", ["x", "w"], ["y"])], [weight])


def written(folder: Path, nodes, initializers=(), domains=()) -> None:
    """A model of x [3] and y [3], unchecked."""
    folder.mkdir(parents=True)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "by_hand", ends[:1], ends[1:], list(initializers))
    opsets = [helper.make_opsetid(domain, version) for domain, version in [("", 20), *((name, 1) for name in domains)]]
    (folder / "model.onnx").write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    )


@pytest.fixture(scope="module")
def service(models, tmp_path_factory):
    flags = ["--workers", "1", "--max-concurrent-runs", "1", "--model-control-mode", "explicit"]
    flags += [
        "--max-body-bytes",
        str(4 * MIB),
        "--max-header-bytes",
        "8192",
        "--read-timeout-seconds",
        str(RECEIVE_S),
        "--max-memory-bytes",
        str(256 * MIB),
        "--ready-when",  # of the models some are refused
        "any",
    ]
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
    until(lambda: service.resident() - before < GROWTH, FREED_S)


@pytest.fixture
def client(service):
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=30) as client:
        yield client
