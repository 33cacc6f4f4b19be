"""Foreign models whose batch axis has no name: Triton's ``simple`` and ``simple_string``, scikit-learn's classifier."""

import json

import numpy as np
import pytest

from tests.support.v2 import error, infer, packed, parts, tensor

FLOWERS = np.array([[5.1, 3.5, 1.4, 0.2], [5.0, 2.0, 3.5, 1.0], [5.9, 3.0, 5.1, 1.8]], np.float32)
LABELS = ["setosa", "versicolor", "virginica"]
INDICES = [0, 1, 1, 0, 2, 1]  # of the two classes that scikit-learn finds most probable
PROBABILITIES = [0.984703, 0.015297, 0.96209, 0.021654, 0.703297, 0.29365]
A, B = np.arange(48, dtype=np.int32).reshape(3, 16), np.ones((3, 16), np.int32)


def simple(*arrays):
    return {"inputs": [tensor(f"INPUT{i}", array, "INT32") for i, array in enumerate(arrays)]}


SUMS = {"INPUT0": [16], "INPUT1": [16]}, {"OUTPUT0": [16], "OUTPUT1": [16]}


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [("simple", *SUMS), ("simple_string", *SUMS), ("iris", {"X": [4]}, {"label": [], "probabilities": [3]})],
)
def test_metadata_and_configuration_say_that_it_takes_batches(server, model, inputs, outputs):
    config = server.get(f"/v2/models/{model}/config").json()
    assert config["max_batch_size"] == 1024
    said = server.get(f"/v2/models/{model}").json()
    for place, expected in (("input", inputs), ("output", outputs)):
        assert {of["name"]: of["dims"] for of in config[place]} == expected
        assert {of["name"]: of["shape"] for of in said[f"{place}s"]} == {k: [-1, *dims] for k, dims in expected.items()}


@pytest.mark.parametrize("rows", [1, 3])
def test_classification_answers_each_row(server, rows):
    def ask(is_binary):
        classes = {"name": "probabilities", "parameters": {"classification": 2, "binary_data": is_binary}}
        body = {"inputs": [tensor("X", FLOWERS[:rows])], "outputs": [{"name": "label"}, classes]}
        return parts(infer(server, "iris", body))

    answer, _ = ask(is_binary=False)
    label, classes = answer["outputs"]
    assert label == {"name": "label", "datatype": "BYTES", "shape": [rows], "data": LABELS[:rows]}
    assert (classes["datatype"], classes["shape"]) == ("BYTES", [rows, 2])
    values, indices = zip(*(text.split(":") for text in classes["data"]), strict=True)
    assert list(map(int, indices)) == INDICES[: 2 * rows]
    np.testing.assert_allclose(list(map(float, values)), PROBABILITIES[: 2 * rows], atol=1e-5)
    assert ask(is_binary=True)[1]["probabilities"] == packed(classes["data"])


def load(server, model, **config):
    parameters = {"config": json.dumps(config)}
    return server.post(f"/v2/repository/models/{model}/load", json={"parameters": parameters})


def test_a_load_sets_the_batch_size(server):
    try:
        for size, dims in ((2, [16]), (0, [-1, 16])):
            assert load(server, "simple", max_batch_size=size).status_code == 200
            config = server.get("/v2/models/simple/config").json()
            assert (config["max_batch_size"], config["input"][0]["dims"]) == (size, dims)
            assert server.get("/v2/models/simple").json()["inputs"][0]["shape"] == [-1, 16]
            assert infer(server, "simple", simple(A, B)).status_code == (400 if size else 200)
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
    message = f"failed to load '{model}', max_batch_size 8 cannot be honoured, no batch axis: {reason}"
    error(load(server, model, max_batch_size=8), 400, message)
    assert server.get(f"/v2/models/{model}/config").json()["max_batch_size"] == 0
    assert load(server, model, max_batch_size=0).status_code == 200
