"""Inference in the OpenAPI document: the protocol's form of request and answer, with an example for each block."""

from typing import Any

import numpy as np

from service.model import Model
from service.v2.datatype import DATATYPES, datatype
from service.v2.paths import OF_MODEL
from service.v2.wire import Error

PATHS = (f"/v2{OF_MODEL}/infer", f"/v2{OF_MODEL}/versions/{{version}}/infer")
STATUSES = {
    "400": "Not the protocol, a tensor or parameter that is wrong, or a body over the limit",
    "404": "No such model or version",
    "500": "The server failed; its log has the request id",
    "501": "Another Content-Encoding than gzip or deflate",
    "503": "Models are being loaded, as many requests wait as may, or the server is stopping",
    "504": "Past the timeout in its parameters before it was begun",
}
PARAMETERS = {
    "type": "object",
    "description": "The model's single numbers and flags, and binary_data_output, timeout (microseconds), priority, "
    "sequence_id, sequence_start, sequence_end",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
TENSOR = {
    "name": {"type": "string"},
    "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "datatype": {"type": "string", "enum": list(DATATYPES)},
    "data": {"type": "array", "items": {}, "description": "nested or flat, row-major"},
}
BINARY_SIZE = {"binary_data_size": {"type": "integer", "minimum": 0, "description": "bytes that follow the JSON"}}
SCHEMAS: dict[str, Any] = {
    "Error": Error.model_json_schema(),
    "InferRequest": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": PARAMETERS,
            "inputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "shape", "datatype"],
                    "properties": {**TENSOR, "parameters": {"type": "object", "properties": BINARY_SIZE}},
                },
            },
            "outputs": {
                "type": "array",
                "description": "all, where left out",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"type": "string"},
                        "parameters": {
                            "type": "object",
                            "properties": {
                                "binary_data": {"type": "boolean"},
                                "classification": {"type": "integer", "minimum": 0},
                            },
                        },
                    },
                },
            },
        },
    },
    "InferResponse": {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "shape", "datatype"],
                    "properties": {**TENSOR, "parameters": {"type": "object", "properties": BINARY_SIZE}},
                },
            },
        },
    },
}


def add(document: dict[str, Any], blocks: dict[str, Model]) -> None:
    """Inference, with the blocks loaded now as examples, in ``document``; and no 422, which V2 does not answer."""
    document["components"]["schemas"].update(SCHEMAS)
    for path, operations in document["paths"].items():
        if path.startswith("/v2"):
            for operation in operations.values():
                operation["responses"].pop("422", None)
    for path in PATHS:
        document["paths"].setdefault(path, {})["post"] = _operation(path, blocks)


def _operation(path: str, blocks: dict[str, Model]) -> dict[str, Any]:
    examples = {name: {"summary": name, "value": _example(model)} for name, model in blocks.items()}
    names: list[dict[str, Any]] = [
        {"name": "model", "schema": {"type": "string"}, "examples": {name: {"value": name} for name in blocks}}
    ]
    if "{version}" in path:
        names.append({"name": "version", "schema": {"type": "integer", "minimum": 0}, "example": 1})
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {
        "tags": ["Open Inference Protocol"],
        "summary": "Run a model" if "{version}" not in path else "Run a version",
        "description": "Tensors in JSON, or in binary behind it, when the header Inference-Header-Content-Length says "
        "how long the JSON is (0: the whole body is the only input).",
        "operationId": "infer_version" if "{version}" in path else "infer",
        "parameters": [{"in": "path", "required": True, **name} for name in names],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/InferRequest"}, "examples": examples},
                "application/octet-stream": binary,
            },
        },
        "responses": {
            "200": {
                "description": "The outputs asked for",
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/InferResponse"}},
                    "application/octet-stream": binary,
                },
            },
            **{status: {"description": what, "content": error} for status, what in STATUSES.items()},
        },
    }


def _example(model: Model) -> dict[str, Any]:
    assert model.card is not None
    arrays = {name: np.asarray(value) for name, value in model.card.example.items()}
    asked: dict[str, Any] = {
        "inputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": datatype(model.inputs[name].dtype).name,
                "data": array.reshape(-1).tolist(),
            }
            for name, array in arrays.items()
            if name not in model.parameters
        ],
        "outputs": [{"name": name} for name in ("output", "weights") if name in model.outputs],
    }
    parameters = {name: array.item() for name, array in arrays.items() if name in model.parameters}
    return asked | ({"parameters": parameters} if parameters else {})
