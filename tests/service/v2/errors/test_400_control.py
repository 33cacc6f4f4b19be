"""400: a request for control that is wrong; the model is served on."""

import pytest

from tests.support.v2 import ADD, error, infer

CONTROL = {
    "not JSON": ("models/adder/load", b"{", "failed to parse the request JSON buffer"),
    "a list": ("index", b"[]", "failed to parse"),
    "ready a word": ("index", b'{"ready": "perhaps"}', "ready"),
    "parameter a list": ("models/adder/load", b'{"parameters": {"config": []}}', "failed to parse"),
    "unknown parameter": (
        "models/adder/load",
        b'{"parameters": {"x": 1}}',
        "failed to load 'adder', unknown parameter",
    ),
    "config not JSON": ("models/adder/load", b'{"parameters": {"config": "{"}}', "failed to load 'adder', config"),
    "another name": (
        "models/adder/load",
        b'{"parameters": {"config": "{\\"name\\": \\"b\\"}"}}',
        "'name' is set by the model file",
    ),
    "unknown config": ("models/adder/load", b'{"parameters": {"config": "{\\"speed\\": 1}"}}', "'speed' cannot be set"),
    "no version": (
        "models/adder/load",
        b'{"parameters": {"config": "{\\"version_policy\\": {\\"specific\\": {\\"versions\\": [9]}}}"}}',
        "failed to load 'adder', has no version",
    ),
    "a decoupled model": (
        "models/adder/load",
        b'{"parameters": {"config": "{\\"model_transaction_policy\\": {\\"decoupled\\": true}}"}}',
        "'model_transaction_policy' is set by the model file",
    ),
    "a new decoupled model": (
        "models/new/load",
        b'{"parameters": {"config": "{\\"model_transaction_policy\\": {\\"decoupled\\": true}}"}}',
        "'model_transaction_policy' cannot be set here",
    ),
    "files alone": ("models/new/load", b'{"parameters": {"file:1/model.onnx": ""}}', "files need a config"),
    "a path out": (
        "models/new/load",
        b'{"parameters": {"config": "{}", "file:1/../model.onnx": ""}}',
        "no name of a file",
    ),
    "no version in the path": (
        "models/new/load",
        b'{"parameters": {"config": "{}", "file:../model.onnx": ""}}',
        "expected file:<version>/<name>",
    ),
    "no version, for its zeros": (
        "models/new/load",
        b'{"parameters": {"config": "{}", "file:003/model.onnx": ""}}',
        "the version a number from 1, got 'file:003/model.onnx'",
    ),
    "a queue policy that is not offered": (
        "models/adder/load",
        b'{"parameters": {"config": "{\\"dynamic_batching\\": {\\"preferred_batch_size\\": [4]}}"}}',
        "config: dynamic_batching.preferred_batch_size",
    ),
    "no base64": ("models/new/load", b'{"parameters": {"config": "{}", "file:1/model.onnx": "%"}}', "is not base64"),
}


@pytest.mark.parametrize(("path", "body", "said"), CONTROL.values(), ids=CONTROL)
def test_400_of_control(server, path, body, said):
    response = server.post(f"/v2/repository/{path}", content=body)
    error(response, 404 if "has no version" in said else 400, said)
    assert infer(server, "adder", ADD).status_code == 200
