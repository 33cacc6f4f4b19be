"""Answers held against the protocol's own schema (open_inference_rest.yaml), as far as it describes them."""

import jsonschema_rs
import pytest

from tests.support.v2 import NUMBERS, infer, tensor

TEXT, BOOLEAN, TEXTS = {"type": "string"}, {"type": "boolean"}, {"type": "array", "items": {"type": "string"}}
PARAMETERS = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
DATATYPES = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
DATATYPES += ["BOOL", "FP16", "FP32", "FP64", "BYTES", "BF16"]


def schema(required: str, **properties: dict) -> dict:
    """Of an object."""
    return {"type": "object", "required": required.split(), "properties": properties}


TENSOR_FIELDS = {
    "name": TEXT,
    "datatype": {"enum": DATATYPES},
    "shape": {"type": "array", "items": {"type": "integer"}},
    "parameters": PARAMETERS,
}
TENSORS = {"type": "array", "items": schema("name datatype shape", **TENSOR_FIELDS)}
OUTPUT = schema("name datatype shape data", **TENSOR_FIELDS, data={"type": "array"})
SCHEMAS = {
    "/v2": schema("name version extensions", name=TEXT, version=TEXT, extensions=TEXTS),
    "/v2/health/live": schema("live", live=BOOLEAN),
    "/v2/health/ready": schema("ready", ready=BOOLEAN),
    "/v2/models/{model}/ready": schema("name ready", name=TEXT, ready=BOOLEAN),
    "/v2/models/{model}": schema(
        "name platform",
        name=TEXT,
        versions=TEXTS,
        platform=TEXT,
        inputs=TENSORS,
        outputs=TENSORS,
        properties={"type": "object", "additionalProperties": TEXT},
    ),
}
ANSWER = schema(
    "model_name outputs",
    model_name=TEXT,
    model_version=TEXT,
    id=TEXT,
    parameters=PARAMETERS,
    outputs={"type": "array", "items": OUTPUT},
)
ERROR = schema("error", error=TEXT)
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
