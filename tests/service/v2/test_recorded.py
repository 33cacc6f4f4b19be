"""Requests as clients sent them that are too heavy to install here: MLServer's codecs, Seldon's explainer, docling.

``recorded.json`` holds the body and headers of each, as its package (``recorded_from``) sent them to this service, and
the numbers that the package then read from the answer.
"""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.v2 import parts, tensor

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
NUMPY = {"FP32": np.float32, "INT64": np.int64}


def rounded(data: list) -> list:
    return [round(item, 6) if isinstance(item, float) else item for item in data]


@pytest.mark.parametrize("recorded", RECORDED, ids=[recorded["name"] for recorded in RECORDED])
def test_recorded(server, recorded):
    content = base64.b64decode(recorded["base64"]) if "base64" in recorded else recorded["text"].encode()
    for _ in range(3):  # the first is read as a whole, the others by the plan of the first
        answer, binary = parts(server.post(recorded["path"], content=content, headers=recorded["headers"]))
        found = {}
        for of in answer["outputs"]:
            data = of.get("data")
            if data is None:
                data = np.frombuffer(binary[of["name"]], NUMPY[of["datatype"]]).tolist()
            assert np.prod(of["shape"]) == len(data)
            found[of["name"]] = rounded(data)
        assert found == {name: rounded(data) for name, data in recorded["outputs"].items()}


@pytest.mark.parametrize("value", ["np", 7, 1.5, False, None])
@pytest.mark.parametrize("model", ["adder", "scaled_dot_product"])
def test_parameters_of_clients_are_ignored(server, model, value):
    """On the request, its inputs and its outputs; those of the protocol still count."""
    names, output = (("x", "z"), "y") if model == "adder" else (("query", "key", "value"), "output")
    shape = [1, 3] if model == "adder" else [1, 1, 1, 3]
    given = {"shape": shape, "datatype": "FP32", "data": [1, 2, 3], "parameters": {"content_type": value}}
    body = {
        "inputs": [{"name": name, **given} for name in names],
        "outputs": [{"name": output, "parameters": {"content_type": value, "binary_data": True}}],
        "parameters": {"content_type": value, "threshold": value, "user": value},
    }
    _, binary = parts(server.post(f"/v2/models/{model}/infer", json=body))
    expected = [4, 6, 8] if model == "adder" else [1, 2, 3]
    assert np.frombuffer(binary[output], np.float32).tolist() == expected


def test_parameters_of_tensors_may_be_anything(server):
    """Triton reads only those that it knows."""
    odd = {"headers": {"a": [1]}, "more": [1, {}], "nothing": None}
    body = {"inputs": [tensor("x", [[1, 2]], parameters=odd)], "outputs": [{"name": "y", "parameters": odd}]}
    answer, _ = parts(server.post("/v2/models/identity_FP32/infer", json=body))
    assert answer["outputs"][0]["data"] == [1, 2]


def test_names_of_many_characters_are_not_compared_with_options(server):
    """256 parameters with names of a thousand characters each, spelt like an option: quickly answered."""
    names = [f"{'is_causal' * 100}{n}" for n in range(256)]
    inputs = [tensor(name, [[[[1]]]]) for name in ("query", "key", "value")]
    body = {"inputs": inputs, "parameters": dict.fromkeys(names, 1), "outputs": [{"name": "output"}]}
    answer = server.post("/v2/models/scaled_dot_product/infer", json=body)
    assert answer.json()["outputs"][0]["data"] == [1]
    assert float(answer.headers["server-timing"].split("decode;dur=")[1].split(",")[0]) < 500
