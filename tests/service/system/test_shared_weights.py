"""Weights beside the graphs, in a file that they share: mapped, not copied; renewed when it changes; never outside."""

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from service.base.errors import Invalid
from service.model.spec import WEIGHTS_FILE
from service.ort.provider import Provider, open_session
from tests.support import graphs
from tests.support.application import opened
from tests.support.scripts import run_script

SIDE, LARGE_SIDE = 256, 2048
OUTSIDE = ("missing", "../../secret", "nested/../../../secret", "/secret", "link", "*/_ORT_MEM_ADDR_/*")


def write(folder: Path, location: str = WEIGHTS_FILE, place: str = "initializer", side: int = SIDE) -> None:
    """y = x @ w, w [side, side] being the file at ``location``: an initializer, transposed, a constant, in a branch."""
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[side, side], data_location=TensorProto.EXTERNAL)
    w.external_data.add(key="location", value=location)
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    initializers, nodes = [w], [product]
    if place == "transposed":
        nodes = [
            helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "t"], ["y"]),
        ]
    if place == "constant":
        initializers, nodes = [], [helper.make_node("Constant", [], ["w"], value=w), product]
    if place == "branch":
        y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", side]) for name in "yz")
        branches = {
            "then_branch": helper.make_graph([product], "then", [], [y], [w]),
            "else_branch": helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "else", [], [z]),
        }
        initializers = [onnx.numpy_helper.from_array(np.array(True), "yes")]
        nodes = [helper.make_node("If", ["yes"], ["y"], **branches)]
    graphs.write(folder, nodes, [("x", "FP32", ["rows", side])], [("y", "FP32", ["rows", side])], initializers)


def fill(file: Path, number: float, side: int = SIDE) -> None:
    """A whole new file of weights in the place of ``file``, as an export or a copy tool would put it."""
    fresh = file.with_name("fresh")
    np.full((side, side), number, np.float32).tofile(fresh)
    os.replace(fresh, file)


def answer(repository):
    x = np.zeros((1, SIDE), np.float32)
    x[0, 0] = 1
    product = repository.model("product")
    return product.run(product.graphs[0], {"x": x}, ["y"])["y"][0, 0]


@pytest.mark.parametrize("place", ["initializer", "constant"])  # ONNX Runtime refuses data of a branch, wherever it is
def test_a_change_of_the_weights_alone_is_followed(tmp_path, place):
    folder = tmp_path / "product" / "1"
    write(folder, place=place)
    fill(folder / WEIGHTS_FILE, 2)
    repository = opened(tmp_path)
    old = repository.model("product")
    assert answer(repository) == 2
    repository.poll()
    assert repository.model("product") is old
    fill(folder / WEIGHTS_FILE, 3)
    assert answer(repository) == 2  # what is mapped is the old file, whole
    repository.poll()
    assert answer(repository) == 3


@pytest.mark.parametrize("place", ["initializer", "constant", "branch"])
@pytest.mark.parametrize("location", OUTSIDE)
def test_a_model_reads_no_file_outside_its_folder(location, place, tmp_path):
    """The secret is there, of the right length; a link inside the folder is no way to it either."""
    folder = tmp_path / "product" / "1"
    (folder / "nested").mkdir(parents=True)
    fill(tmp_path / "secret", 42)
    (folder / "link").symlink_to(tmp_path / "secret")
    location = str(tmp_path / "secret") if location == "/secret" else location
    write(folder, location, place)
    repository = opened(tmp_path)
    assert "product" not in repository.models
    assert [(line.name, line.state) for line in repository.index()] == [("product", "UNAVAILABLE")]
    with pytest.raises(Invalid, match="failed to load 'product'") as refused:
        repository.load_model("product")
    assert str(tmp_path) not in str(refused.value).replace(location, "what the model said itself")


def test_a_link_that_leads_out_is_explained(tmp_path):
    """As a volume of Kubernetes or a cache of downloads lays files out."""
    folder = tmp_path / "product" / "1"
    write(folder)
    fill(tmp_path / "blob", 7)
    (folder / WEIGHTS_FILE).symlink_to(tmp_path / "blob")
    repository = opened(tmp_path)
    (line,) = repository.index()
    assert "'weights.bin' is a symbolic link to a place outside the version's folder" in line.reason
    assert str(tmp_path) not in line.reason
    (folder / WEIGHTS_FILE).unlink()
    fill(folder / "blob", 7)
    (folder / WEIGHTS_FILE).symlink_to("blob")  # one that stays inside is read
    repository.poll()
    assert answer(repository) == 7


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
model = open_version(Path(sys.argv[1]), Provider("cpu", "requested"), 1)
for graph in model.graphs:
    graph.session.onnx.run(None, {"x": np.ones((1, int(sys.argv[2])), np.float32)})
print(len(model.graphs), private() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no /proc/self/smaps_rollup here: use Linux")
@pytest.mark.parametrize("place", ["initializer", "transposed"])  # as tied embeddings are
def test_one_copy_at_most_of_what_the_graphs_share(tmp_path, place):
    """Four graphs of 16 MB each: the canonical one's own layout, and pages that every process maps alike."""
    folder = tmp_path / "product" / "1"
    write(folder, place=place, side=LARGE_SIDE)
    for name in ("one", "two", "three"):
        shutil.copy(folder / "model.onnx", folder / f"{name}.onnx")
    fill(folder / WEIGHTS_FILE, 1, LARGE_SIDE)
    count, grown = map(int, run_script(PRIVATE, folder, LARGE_SIDE).split())
    assert count == 4
    assert grown * 1024 < 2 * 4 * LARGE_SIDE**2


COPIES = """
import sys
from pathlib import Path
import numpy as np
from service.ort.provider import choose, open_session

MIB, SIDE = 1 << 20, 2048  # weights of 16 MiB
provider = choose("cpu", host_memory=40 * MIB)
file = Path(sys.argv[1]) / "model.onnx"
x = np.random.default_rng(0).standard_normal((3000, SIDE), dtype=np.float32)

sessions = [open_session(file, provider, 1) for _ in range(3)]
assert 32 * MIB <= provider.copies.used < 33 * MIB, "two sessions have a copy, the third maps the file"
for session in sessions:  # outputs of 23 MiB each, beside copies of 32
    assert np.allclose(session.run(None, {"x": x})[0], x.sum(1, keepdims=True), atol=1e-2)
try:
    sessions[0].run(None, {"x": np.ones((10_000, SIDE), np.float32)})
except Exception as error:
    assert "Available memory" in str(error), error
else:
    raise SystemExit("outputs of 78 MiB had room beside copies of 32, with a limit of 80")

del sessions, session
assert provider.copies.used == 0
assert open_session(file, provider, 1) and provider.copies.used == 0
"""


def test_copies_of_weights_take_no_memory_of_runs(tmp_path):
    """ONNX Runtime's arena counts them as memory of runs: three of them would leave none for a run."""
    folder = tmp_path / "product" / "1"
    write(folder, side=LARGE_SIDE)
    fill(folder / WEIGHTS_FILE, 1, LARGE_SIDE)
    run_script(COPIES, folder)


def test_a_session_that_cannot_be_opened_leaves_no_copy(tmp_path):
    write(tmp_path, "nothing")
    fill(tmp_path / WEIGHTS_FILE, 1)
    provider = Provider("cpu", "requested")
    with pytest.raises(Exception, match="nothing"):
        open_session(tmp_path / "model.onnx", provider, 1)
    assert provider.copies.used == 0
