"""A block with many weights: one file of weights for all its graphs, and results within the reference's error."""

import json

import numpy as np
import onnx
import pytest

from export.artifact import export_block
from export.graphs.shared_weights import MIN_BYTES, NAME, PAGE_BYTES, SharedWeights
from export.kernels.fast_path import ATTENTION
from export.verification.sessions import session
from models.learned import LARGE
from models.multi_head import MultiHeadConfig, block
from service.model.spec import WEIGHTS_FILE

WIDE = block(MultiHeadConfig(d_model=512, num_heads=8, inputs="x"), name="wide")
LEARNED = 4 * 512 * 512


@pytest.fixture(scope="module")
def folder(once):
    return once("wide", lambda repository: export_block(WIDE, repository), keep=True) / "wide" / "1"


def test_every_graph_refers_to_the_one_file(folder):
    assert LEARNED > LARGE
    assert NAME == WEIGHTS_FILE, "the service has another name for it"
    names = {file.name for file in folder.iterdir()}
    assert names == {NAME, "model.onnx", "weights.onnx", "lse.onnx", *(f"{path}.onnx" for path in ATTENTION)}
    lengths = {}  # offset -> length
    for file in folder.glob("*.onnx"):
        assert file.stat().st_size < 100_000
        for tensor in onnx.load(file, load_external_data=False).graph.initializer:
            reference = {entry.key: entry.value for entry in tensor.external_data}
            assert reference or len(tensor.raw_data) < MIN_BYTES
            if reference:
                assert reference["location"] == NAME
                lengths[int(reference["offset"])] = int(reference["length"])
    assert all(offset % PAGE_BYTES == 0 for offset in lengths)
    assert sum(lengths.values()) == 4 * (LEARNED + 4 * 512)  # each matrix and bias once
    assert (folder / NAME).stat().st_size < sum(lengths.values()) + PAGE_BYTES * len(lengths)


def test_from_pairs_is_at_least_the_number_of_weights(folder):
    for path in ATTENTION:
        spec = json.loads(session(folder / f"{path}.onnx").get_modelmeta().custom_metadata_map["heed"])
        assert spec["from_pairs"] == max(LEARNED, ATTENTION[path].from_pairs)


def test_its_outputs_are_those_of_the_reference(folder):
    """With more positions than in the examples of the export's verification."""
    module = WIDE.build()
    x = np.random.default_rng(0).standard_normal((1, 300, 512), np.float32)
    exact, plain = (WIDE.reference(module, {"x": x}, dtype)["output"] for dtype in (np.float64, np.float32))
    budget = 2 * np.abs(plain - exact).max()
    for name in ("model", "flash", "padded", "blocks"):
        output = session(folder / f"{name}.onnx").run(["output"], {"x": x})[0]
        assert np.abs(output - exact).max() <= budget, name


def test_a_tensor_is_written_once(tmp_path):
    weights = SharedWeights(tmp_path)
    ones, twos = (np.full(MIN_BYTES, fill, np.float32) for fill in (1, 2))
    graphs = [
        onnx.GraphProto(initializer=[onnx.numpy_helper.from_array(array, f"a{i}") for i, array in enumerate(arrays)])
        for arrays in ([ones, twos], [twos, ones, np.ones(3, np.float32)])
    ]
    for graph in graphs:
        weights.move(graph)
    assert (tmp_path / NAME).stat().st_size == 2 * ones.nbytes
    first, second = graphs
    assert [t.name for t in second.initializer if not t.external_data] == ["a2"]
    for graph, expected in ((first, [ones, twos]), (second, [twos, ones])):
        onnx.external_data_helper.load_external_data_for_model(onnx.ModelProto(graph=graph), str(tmp_path))
        for tensor, array in zip(graph.initializer, expected, strict=False):
            np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor, str(tmp_path)), array)
