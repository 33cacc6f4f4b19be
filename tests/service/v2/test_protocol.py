"""Answers held against the protocol's own schema (open_inference_rest.yaml), as far as it describes them."""

import jsonschema_rs
import pytest

from tests.support.v2 import NUMBERS, infer, tensor

PARAMETERS = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {
            "enum": [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
            + ["BOOL", "FP16", "FP32", "FP64", "BYTES", "BF16"]
        },
        "shape": {"type": "array", "items": {"type": "integer"}},
        "parameters": PARAMETERS,
    },
}
OUTPUT = {
    **TENSOR,
    "required": [*TENSOR["required"], "data"],
    "properties": {**TENSOR["properties"], "data": {"type": "array"}},
}
SCHEMAS = {
    "/v2": {
        "type": "object",
        "required": ["name", "version", "extensions"],
        "properties": {
            "name": {"type": "string"},
            "version": {"type": "string"},
            "extensions": {"type": "array", "items": {"type": "string"}},
        },
    },
    "/v2/health/live": {"type": "object", "required": ["live"], "properties": {"live": {"type": "boolean"}}},
    "/v2/health/ready": {"type": "object", "required": ["ready"], "properties": {"ready": {"type": "boolean"}}},
    "/v2/models/{model}/ready": {
        "type": "object",
        "required": ["name", "ready"],
        "properties": {"name": {"type": "string"}, "ready": {"type": "boolean"}},
    },
    "/v2/models/{model}": {
        "type": "object",
        "required": ["name", "platform"],
        "properties": {
            "name": {"type": "string"},
            "versions": {"type": "array", "items": {"type": "string"}},
            "platform": {"type": "string"},
            "inputs": {"type": "array", "items": TENSOR},
            "outputs": {"type": "array", "items": TENSOR},
            "properties": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    },
}
ANSWER = {
    "type": "object",
    "required": ["model_name", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "parameters": PARAMETERS,
        "outputs": {"type": "array", "items": OUTPUT},
    },
}
ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
MODELS = ["scaled_dot_product", "multi_head", "mixed", "adder", "scalar", "identity_BF16"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("path", SCHEMAS)
def test_what_is_said_of_server_and_models(server, path, model):
    jsonschema_rs.validate(SCHEMAS[path], server.get(path.format(model=model)).json())


@pytest.mark.parametrize("datatype", NUMBERS)
def test_answers(server, datatype):
    given = {"name": "x", "shape": [1, 2], "datatype": datatype, "data": NUMBERS[datatype]}
    answer = infer(server, f"identity_{datatype}", {"inputs": [given], "id": "7"}).json()
    jsonschema_rs.validate(ANSWER, answer)
    kind = {"BOOL": "boolean", "BYTES": "string"}.get(datatype, "number")
    jsonschema_rs.validate({"type": "array", "items": {"type": kind}}, answer["outputs"][0]["data"])


def test_errors(server):
    for response in (
        infer(server, "adder", {"inputs": [tensor("x", [[1, 2, 3]])]}),
        infer(server, "nothing", {}),
        server.get("/v2/models/nothing"),
        server.get("/v2/nothing"),
    ):
        assert response.status_code >= 400
        jsonschema_rs.validate(ERROR, response.json())
