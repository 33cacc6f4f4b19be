"""Requests as clients sent them that are too heavy to install here: MLServer's codecs, Seldon's explainer, docling.

``recorded.json`` holds the body and headers of each, as its package (``recorded_from``) sent them to this service, and
the numbers that the package then read from the answer.
"""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from service.base import messages
from tests.support.application import running
from tests.support.v2 import DTYPES, QKV, infer, parts, tensor

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())


def rounded(data: list) -> list:
    return [round(item, 6) if isinstance(item, float) else item for item in data]


@pytest.mark.parametrize("recorded", RECORDED, ids=[recorded["name"] for recorded in RECORDED])
def test_recorded(server, recorded):
    content = base64.b64decode(recorded["base64"]) if "base64" in recorded else recorded["text"].encode()
    for _ in range(3):  # the first is read as a whole, the others by the plan of the first
        answer, binary = parts(server.post(recorded["path"], content=content, headers=recorded["headers"]))
        found = {}
        for of in answer["outputs"]:
            name, data = of["name"], of.get("data")
            data = np.frombuffer(binary[name], DTYPES[of["datatype"]]).tolist() if data is None else data
            assert np.prod(of["shape"]) == len(data)
            found[name] = rounded(data)
        assert found == {name: rounded(data) for name, data in recorded["outputs"].items()}


@pytest.mark.parametrize("value", ["np", 7, 1.5, False, None])
@pytest.mark.parametrize(
    ("model", "names", "array", "output", "expected"),
    [
        ("adder", ("x", "z"), [[1, 2, 3]], "y", [4, 6, 8]),
        ("scaled_dot_product", ("query", "key", "value"), [[[[1, 2, 3]]]], "output", [1, 2, 3]),
    ],
)
def test_parameters_of_clients_are_ignored(server, model, names, array, output, expected, value):
    """On the request, its inputs and its outputs; those of the protocol still count."""
    own, asked = {"content_type": value}, {"content_type": value, "binary_data": True}
    body = {
        "inputs": [tensor(name, array, parameters=own) for name in names],
        "outputs": [{"name": output, "parameters": asked}],
        "parameters": {"content_type": value, "threshold": value, "user": value},
    }
    _, binary = parts(infer(server, model, body))
    assert np.frombuffer(binary[output], np.float32).tolist() == expected


def test_parameters_of_tensors_may_be_anything(server):
    """Triton reads only those that it knows."""
    odd = {"headers": {"a": [1]}, "more": [1, {}], "nothing": None}
    body = {"inputs": [tensor("x", [[1, 2]], parameters=odd)], "outputs": [{"name": "y", "parameters": odd}]}
    answer, _ = parts(infer(server, "identity_FP32", body))
    assert answer["outputs"][0]["data"] == [1, 2]


def test_long_names_are_not_compared_with_options(two_blocks, monkeypatch):
    """256 parameters with names of a thousand characters each, spelt like an option."""
    monkeypatch.setattr(messages, "get_close_matches", None)
    names = [f"{'is_causal' * 100}{number}" for number in range(256)]
    with running(two_blocks) as client:
        answer = infer(client, "scaled_dot_product", {"inputs": QKV, "parameters": dict.fromkeys(names, 1)})
    assert answer.json()["outputs"][0]["data"] == [1, 1, 1, 1]
