"""400: a request for control that is wrong; the model is served on."""

import json

import pytest

from tests.support.v2 import ADD, error, infer

LOAD, NEW = "models/adder/load", "models/new/load"


def loading(config: str | dict | list = "{}", **files: str) -> bytes:
    config = json.dumps(config) if isinstance(config, dict) else config
    return json.dumps({"parameters": {"config": config, **files}}).encode()


DECOUPLED = loading({"model_transaction_policy": {"decoupled": True}})
CONTROL = {
    "not JSON": (LOAD, b"{", "failed to parse the request JSON buffer"),
    "a list": ("index", b"[]", "failed to parse"),
    "ready a word": ("index", b'{"ready": "perhaps"}', "ready"),
    "parameter a list": (LOAD, loading([]), "failed to parse"),
    "unknown parameter": (LOAD, b'{"parameters": {"x": 1}}', "failed to load 'adder', unknown parameter"),
    "config not JSON": (LOAD, loading("{"), "failed to load 'adder', config"),
    "another name": (LOAD, loading({"name": "b"}), "'name' is set by the model file"),
    "unknown config": (LOAD, loading({"speed": 1}), "'speed' cannot be set"),
    "no version": (LOAD, loading({"version_policy": {"specific": {"versions": [9]}}}), "'adder', no version matches"),
    "a decoupled model": (LOAD, DECOUPLED, "'model_transaction_policy' is set by the model file"),
    "a new decoupled model": (NEW, DECOUPLED, "'model_transaction_policy' cannot be set here"),
    "files alone": (NEW, b'{"parameters": {"file:1/model.onnx": ""}}', "files require a config"),
    "a path out": (NEW, loading(**{"file:1/../model.onnx": ""}), "is not a valid file name"),
    "no version in the path": (NEW, loading(**{"file:../model.onnx": ""}), "expected file:<version>/<name>"),
    "a version with zeros": (NEW, loading(**{"file:003/model.onnx": ""}), "a number from 1, got 'file:003/model.onnx'"),
    "a queue policy that is not offered": (
        LOAD,
        loading({"dynamic_batching": {"preferred_batch_size": [4]}}),
        "config: dynamic_batching.preferred_batch_size",
    ),
    "no base64": (NEW, loading(**{"file:1/model.onnx": "%"}), "invalid base64"),
}


@pytest.mark.parametrize(("path", "body", "said"), CONTROL.values(), ids=CONTROL)
def test_400_of_control(server, path, body, said):
    response = server.post(f"/v2/repository/{path}", content=body)
    error(response, 404 if "no version matches" in said else 400, said)
    assert infer(server, "adder", ADD).status_code == 200
