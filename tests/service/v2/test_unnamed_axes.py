"""Foreign models whose batch axis has no name: Triton's ``simple`` and ``simple_string``, scikit-learn's classifier."""

import json

import numpy as np
import pytest
import tritonclient.http as triton

from tests.support.v2 import binary, error, infer, parts, tensor

FLOWERS = np.array([[5.1, 3.5, 1.4, 0.2], [5.0, 2.0, 3.5, 1.0], [5.9, 3.0, 5.1, 1.8]], np.float32)
LABELS = ["setosa", "versicolor", "virginica"]
PROBABILITIES = [[0.984703, 0.015297, 0.0], [0.021654, 0.96209, 0.016257], [0.003053, 0.29365, 0.703297]]  # sklearn's
A, B = np.arange(48, dtype=np.int32).reshape(3, 16), np.ones((3, 16), np.int32)


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
    assert {of["name"]: of["dims"] for of in config["input"]} == inputs
    assert {of["name"]: of["dims"] for of in config["output"]} == outputs
    said = server.get(f"/v2/models/{model}").json()
    assert {of["name"]: of["shape"] for of in said["inputs"]} == {name: [-1, *dims] for name, dims in inputs.items()}
    assert {of["name"]: of["shape"] for of in said["outputs"]} == {name: [-1, *dims] for name, dims in outputs.items()}


def test_triton_s_own_client(address):
    client = triton.InferenceServerClient(address)
    for name, datatype, a, b in (
        ("simple", "INT32", A, B),
        ("simple_string", "BYTES", *(np.array(of, str).astype(object) for of in (A, B))),
    ):
        inputs = [triton.InferInput(f"INPUT{i}", [3, 16], datatype) for i in range(2)]
        for tensor_of, array in zip(inputs, (a, b), strict=True):
            tensor_of.set_data_from_numpy(array)
        result = client.infer(name, inputs)
        for output, expected in (("OUTPUT0", A + B), ("OUTPUT1", A - B)):
            np.testing.assert_array_equal(result.as_numpy(output).astype(np.int32), expected)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("wire", ["json", "binary"])
def test_classification_answers_each_row(server, rows, wire):
    wanted = [{"name": "label"}, {"name": "probabilities", "parameters": {"classification": 2}}]
    if wire == "json":
        answer = infer(server, "iris", {"inputs": [tensor("X", FLOWERS[:rows])], "outputs": wanted}).json()
        label, best = answer["outputs"]
        assert label["data"] == LABELS[:rows]
        assert (best["datatype"], best["shape"]) == ("BYTES", [rows, 2])
        found = best["data"]
    else:
        wanted[1]["parameters"]["binary_data"] = True
        answer, content = parts(binary(server, "iris", {"X": FLOWERS[:rows]}, {"X": "FP32"}, outputs=wanted))
        assert [of["shape"] for of in answer["outputs"]] == [[rows], [rows, 2]]
        packed = content["probabilities"]
        found = []
        while packed:
            length = int.from_bytes(packed[:4], "little")
            found.append(packed[4 : 4 + length].decode())
            packed = packed[4 + length :]
    expected = []
    for row in PROBABILITIES[:rows]:
        expected += sorted(((value, index) for index, value in enumerate(row)), reverse=True)[:2]
    assert [int(text.split(":")[1]) for text in found] == [index for _, index in expected]
    np.testing.assert_allclose(
        [float(text.split(":")[0]) for text in found], [value for value, _ in expected], atol=1e-5
    )


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
        ("centred", "in a trial run a row of output 'y' depended on the other rows"),
        ("product", "a trial run of two rows failed, of each alone it did not"),
        ("mixed", "input 'count' has the fixed first dimension 4"),
        ("encoder", "output 'hidden_states' has the fixed first dimension 3"),
    ],
)
def test_a_load_whose_batch_size_cannot_be_honoured_is_refused(server, model, reason):
    message = f"failed to load '{model}', max_batch_size 8 cannot be honoured, no batch axis: {reason}"
    error(load(server, model, max_batch_size=8), 400, message)
    assert server.get(f"/v2/models/{model}/config").json()["max_batch_size"] == 0
    assert load(server, model, max_batch_size=0).status_code == 200
