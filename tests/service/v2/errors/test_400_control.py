"""400: a request for control that is wrong; the model is served on."""

import pytest

from tests.service.v2.calls import ADD, error, infer

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
        "'name' is the model",
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
        "'model_transaction_policy' is the model file's to say",
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
    "no base64": ("models/new/load", b'{"parameters": {"config": "{}", "file:1/model.onnx": "%"}}', "is not base64"),
}


@pytest.mark.parametrize(("path", "body", "said"), CONTROL.values(), ids=CONTROL)
def test_400_of_control(server, path, body, said):
    response = server.post(f"/v2/repository/{path}", content=body)
    error(response, 404 if "has no version" in said else 400, said)
    assert infer(server, "adder", ADD).status_code == 200
