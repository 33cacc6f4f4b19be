"""Weights beside the graphs, in a file that they share: mapped, not copied; renewed when it changes; never outside."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from service.errors import Invalid
from service.model.spec import WEIGHTS_FILE
from service.repository.repository import Repository
from service.settings import Settings

MB = 1 << 20
SIDE = 2048


def graph(file: Path, location: str = WEIGHTS_FILE, place: str = "initializer") -> None:
    """y = x @ w, w [SIDE, SIDE] being the file at ``location``: an initializer, or in a constant or a branch."""
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[SIDE, SIDE], data_location=TensorProto.EXTERNAL)
    w.external_data.add(key="location", value=location)
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", SIDE]) for name in "xyz")
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    initializers, nodes = [w], [product]
    if place == "constant":
        initializers, nodes = [], [helper.make_node("Constant", [], ["w"], value=w), product]
    if place == "branch":
        branches = {
            "then_branch": helper.make_graph([product], "then", [], [y], [w]),
            "else_branch": helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "else", [], [z]),
        }
        initializers = [onnx.numpy_helper.from_array(np.array(True), "yes")]
        nodes = [helper.make_node("If", ["yes"], ["y"], **branches)]
    model = helper.make_model(
        helper.make_graph(nodes, "product", [x], [y], initializers),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(model.SerializeToString())


def weigh(file: Path, number: float) -> None:
    """A whole new file of weights in the place of ``file``, as an export or a copy tool would put it."""
    fresh = file.with_name("fresh")
    np.full((SIDE, SIDE), number, np.float32).tofile(fresh)
    os.replace(fresh, file)


def loaded(folder):
    repository = Repository(Settings(model_repository=folder).sized())
    repository.open()
    repository.load()
    return repository


def answer(repository):
    x = np.zeros((1, SIDE), np.float32)
    x[0, 0] = 1
    product = repository.model("product")
    return product.run(product.graphs[0], {"x": x}, ["y"])["y"][0, 0]


def test_a_change_of_the_weights_alone_is_followed(tmp_path):
    folder = tmp_path / "product" / "1"
    graph(folder / "model.onnx")
    weigh(folder / WEIGHTS_FILE, 2)
    repository = loaded(tmp_path)
    old = repository.model("product")
    assert answer(repository) == 2
    repository.poll()
    assert repository.model("product") is old
    weigh(folder / WEIGHTS_FILE, 3)
    assert answer(repository) == 2  # what is mapped is the old file, whole
    repository.poll()
    assert answer(repository) == 3


OUTSIDE = ("../../secret", "nested/../../../secret", "/secret", "link", "*/_ORT_MEM_ADDR_/*")


@pytest.mark.parametrize("place", ["initializer", "constant", "branch"])
@pytest.mark.parametrize("location", OUTSIDE)
def test_a_model_reads_no_file_outside_its_folder(location, place, tmp_path):
    """The secret is there, of the right length; a link inside the folder is no way to it either."""
    folder = tmp_path / "product" / "1"
    (folder / "nested").mkdir(parents=True)
    weigh(tmp_path / "secret", 42)
    (folder / "link").symlink_to(tmp_path / "secret")
    location = str(tmp_path / "secret") if location == "/secret" else location
    graph(folder / "model.onnx", location, place)
    repository = loaded(tmp_path)
    assert "product" not in repository.models
    assert [(line.name, line.state) for line in repository.index()] == [("product", "UNAVAILABLE")]
    with pytest.raises(Invalid, match="failed to load 'product'") as refused:
        repository.load_model("product")
    assert str(tmp_path) not in str(refused.value).replace(location, "what the model said itself")


def test_a_link_that_leads_out_is_explained(tmp_path):
    """As a volume of Kubernetes or a cache of downloads lays files out."""
    folder = tmp_path / "product" / "1"
    graph(folder / "model.onnx")
    weigh(tmp_path / "blob", 7)
    (folder / WEIGHTS_FILE).symlink_to(tmp_path / "blob")
    repository = loaded(tmp_path)
    (line,) = repository.index()
    assert "'weights.bin' is a symbolic link that leads out of the version's folder" in line.reason
    assert str(tmp_path) not in line.reason
    (folder / WEIGHTS_FILE).unlink()
    weigh(folder / "blob", 7)
    (folder / WEIGHTS_FILE).symlink_to("blob")  # one that stays inside is read
    repository.poll()
    assert answer(repository) == 7


def test_the_same_graph_with_its_weights_beside_it_loads(tmp_path):
    """So the test above is not passed for another reason; data of a branch, ONNX Runtime refuses wherever it is."""
    for place in ("initializer", "constant"):
        graph(tmp_path / "product" / "1" / "model.onnx", WEIGHTS_FILE, place)
        weigh(tmp_path / "product" / "1" / WEIGHTS_FILE, 7)
        assert answer(loaded(tmp_path)) == 7


PRIVATE = """
import sys
from pathlib import Path
import numpy as np
from service.model.loader import open_version
from service.ort.provider import Provider

def private():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))

before = private()
model = open_version(Path(sys.argv[1]), Provider("cpu", "asked for"), 1)
for graph in model.graphs:
    graph.session.onnx.run(None, {"x": np.ones((1, int(sys.argv[2])), np.float32)})
print(len(model.graphs), private() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads memory as Linux tells it")
def test_one_copy_at_most_of_what_the_graphs_share(tmp_path):
    """Four graphs of 16 MB each: the canonical one's own layout, and pages that every process maps alike."""
    folder = tmp_path / "product" / "1"
    for name in ("model", "one", "two", "three"):
        graph(folder / f"{name}.onnx")
    weigh(folder / WEIGHTS_FILE, 1)
    command = [sys.executable, "-c", PRIVATE, str(folder), str(SIDE)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    graphs, grown = map(int, done.stdout.split())
    assert graphs == 4
    assert grown * 1024 < 2 * 4 * SIDE * SIDE
