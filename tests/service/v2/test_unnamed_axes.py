"""Foreign models whose batch axis has no name: Triton's ``simple`` and ``simple_string``, scikit-learn's classifier."""

import json
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.support import graphs
from tests.support.in_process import serving_in_process
from tests.support.triton_inputs import tensors
from tests.support.v2 import binary, error, infer, parts, tensor

FLOWERS = np.array([[5.1, 3.5, 1.4, 0.2], [5.0, 2.0, 3.5, 1.0], [5.9, 3.0, 5.1, 1.8]], np.float32)
LABELS = ["setosa", "versicolor", "virginica"]
PROBABILITIES = [[0.984703, 0.015297, 0.0], [0.021654, 0.96209, 0.016257], [0.003053, 0.29365, 0.703297]]  # sklearn's
A, B = np.arange(48, dtype=np.int32).reshape(3, 16), np.ones((3, 16), np.int32)


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("unnamed")
    graphs.triton_simple(folder / "simple" / "1")
    graphs.triton_simple(folder / "simple_string" / "1", "BYTES")
    graphs.scikit_learn(folder / "iris" / "1")
    graphs.mixed(folder / "mixed" / "1")
    (folder / "encoder").symlink_to(repository / "encoder")
    with (
        serving_in_process(folder, model_control_mode="explicit") as service,
        httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=120) as client,
    ):
        yield client


@pytest.fixture
def triton_client(server):
    with triton.InferenceServerClient(f"{server.base_url.host}:{server.base_url.port}") as client:
        yield client


def simple(*arrays):
    return {"inputs": [tensor(f"INPUT{i}", array, "INT32") for i, array in enumerate(arrays)]}


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        ("simple", {"INPUT0": [16], "INPUT1": [16]}, {"OUTPUT0": [16], "OUTPUT1": [16]}),
        ("simple_string", {"INPUT0": [16], "INPUT1": [16]}, {"OUTPUT0": [16], "OUTPUT1": [16]}),
        ("iris", {"X": [4]}, {"label": [], "probabilities": [3]}),
    ],
)
def test_metadata_and_configuration_say_that_it_takes_batches(server, model, inputs, outputs):
    config = server.get(f"/v2/models/{model}/config").json()
    assert config["max_batch_size"] == 1024
    said = server.get(f"/v2/models/{model}").json()
    for place, expected in (("input", inputs), ("output", outputs)):
        assert {of["name"]: of["dims"] for of in config[place]} == expected
        assert {of["name"]: of["shape"] for of in said[f"{place}s"]} == {k: [-1, *dims] for k, dims in expected.items()}


@pytest.mark.parametrize(("model", "datatype"), [("simple", "INT32"), ("simple_string", "BYTES")])
def test_triton_s_own_client(triton_client, model, datatype):
    a, b = (array if datatype == "INT32" else array.astype(str).astype(object) for array in (A, B))
    result = triton_client.infer(model, tensors(INPUT0=(a, datatype), INPUT1=(b, datatype)))
    for output, expected in (("OUTPUT0", A + B), ("OUTPUT1", A - B)):
        np.testing.assert_array_equal(result.as_numpy(output).astype(np.int32), expected)


def test_the_calls_of_simple_http_model_control(triton_client):
    """Those of Triton's example of that name, in its order, of its model."""
    assert {"name": "simple", "version": "1", "state": "READY"} in triton_client.get_model_repository_index()
    triton_client.load_model("simple")
    assert triton_client.is_model_ready("simple")
    with pytest.raises(InferenceServerException, match="failed to load"):
        triton_client.load_model("simple", config='"parameters": {"config": {{"max_batch_size": "16"}}}')
    triton_client.load_model("simple", config='{"max_batch_size":"16"}')
    assert triton_client.get_model_config("simple")["max_batch_size"] == 16
    triton_client.unload_model("simple")
    assert not triton_client.is_model_ready("simple")
    with pytest.raises(InferenceServerException, match="failed to load"):
        triton_client.load_model("wrong_model_name")
    triton_client.load_model("simple")


def classes(content: bytes) -> list[str]:
    """The texts of an output in binary."""
    found = []
    while content:
        end = 4 + int.from_bytes(content[:4], "little")
        found.append(content[4:end].decode())
        content = content[end:]
    return found


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("wire", ["json", "binary"])
def test_classification_answers_each_row(server, rows, wire):
    wanted = [{"name": "label"}, {"name": "probabilities", "parameters": {"classification": 2}}]
    if wire == "json":
        answer = infer(server, "iris", {"inputs": [tensor("X", FLOWERS[:rows])], "outputs": wanted}).json()
        assert answer["outputs"][0]["data"] == LABELS[:rows]
        found = answer["outputs"][1]["data"]
    else:
        wanted[1]["parameters"]["binary_data"] = True
        answer, content = parts(binary(server, "iris", {"X": FLOWERS[:rows]}, {"X": "FP32"}, outputs=wanted))
        found = classes(content["probabilities"])
    assert [(of["datatype"], of["shape"]) for of in answer["outputs"]] == [("BYTES", [rows]), ("BYTES", [rows, 2])]
    expected = []
    for row in PROBABILITIES[:rows]:
        expected += sorted(((value, index) for index, value in enumerate(row)), reverse=True)[:2]
    values, indices = zip(*(text.split(":")[:2] for text in found), strict=True)
    assert [int(index) for index in indices] == [index for _, index in expected]
    np.testing.assert_allclose([float(value) for value in values], [value for value, _ in expected], atol=1e-5)


def test_statistics_count_rows(server):
    def count():
        return server.get("/v2/models/simple/stats").json()["model_stats"][0]["inference_count"]

    before = count()
    assert infer(server, "simple", simple(A, B)).status_code == 200
    assert count() == before + 3


def test_rows_that_differ_and_too_many_rows(server):
    error(infer(server, "simple", simple(A, B[:2])), 400, "input 'INPUT1' batch size does not match other inputs")
    many = np.zeros((1025, 16))
    error(infer(server, "simple", simple(many, many)), 400, "batch-size must be <= 1024 for 'simple'")


def load(server, model, **config):
    parameters = {"config": json.dumps(config)}
    return server.post(f"/v2/repository/models/{model}/load", json={"parameters": parameters})


def test_a_load_sets_the_batch_size(server):
    try:
        assert load(server, "simple", max_batch_size=2).status_code == 200
        assert server.get("/v2/models/simple/config").json()["max_batch_size"] == 2
        error(infer(server, "simple", simple(A, B)), 400, "batch-size must be <= 2")
        assert load(server, "simple", max_batch_size=0).status_code == 200
        assert server.get("/v2/models/simple/config").json()["input"][0]["dims"] == [-1, 16]
        assert infer(server, "simple", simple(A, B)).status_code == 200
    finally:
        assert load(server, "simple", max_batch_size=1024).status_code == 200


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("mixed", "input 'count' has the fixed first dimension 4"),
        ("encoder", "output 'hidden_states' has the fixed first dimension 3"),
    ],
)
def test_a_load_whose_batch_size_cannot_be_honoured_is_refused(server, model, reason):
    """Other reasons are those of tests/service/model/test_batch_axis.py."""
    message = f"failed to load '{model}', max_batch_size 8 cannot be honoured, no batch axis: {reason}"
    error(load(server, model, max_batch_size=8), 400, message)
    assert server.get(f"/v2/models/{model}/config").json()["max_batch_size"] == 0
    assert load(server, model, max_batch_size=0).status_code == 200
