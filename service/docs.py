"""The OpenAPI document: a path with a runnable example for each block that is loaded, beside the fixed routes."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.attend import CHOICES
from service.model import Model, Tensor
from service.shape import written
from service.v2 import document as v2

PROBLEMS = {
    "400": "Not JSON, or a field the block does not have",
    "404": "No such block",
    "413": "The body, or the memory it would need, over the limit",
    "415": "Not application/json",
    "422": "A tensor or parameter that is wrong; field names it",
    "500": "The server failed; its log has the request id",
    "503": "Models are being loaded, as many requests wait as may, the server is stopping, or its GPU is lost",
    "507": "The device has too little memory left for this run",
}
NUMBERS = {"description": "nested lists of numbers", "type": "array", "items": {}}
CHOICE_SCHEMAS = {
    "outputs": {"type": "array", "items": {"type": "string"}, "default": ["output", "weights"]},
    "average_attn_weights": {"type": "boolean", "default": False, "description": "weights, averaged over the heads"},
    "weights_top_k": {
        "type": "integer",
        "minimum": 1,
        "description": "of each query's weights only the k largest, as indices and values, largest first",
    },
}
COMPONENTS = {
    "Tensor": {
        "oneOf": [
            NUMBERS,
            {
                "description": "the numbers in one row-major list",
                "type": "object",
                "required": ["shape", "data"],
                "properties": {"shape": {"type": "array", "items": {"type": "integer"}}, "data": NUMBERS},
                "additionalProperties": False,
            },
            {
                "description": "little-endian bytes",
                "type": "object",
                "required": ["shape", "dtype", "base64"],
                "properties": {
                    "shape": {"type": "array", "items": {"type": "integer"}},
                    "dtype": {"type": "string", "examples": ["float32"]},
                    "base64": {"type": "string", "contentEncoding": "base64"},
                },
                "additionalProperties": False,
            },
        ]
    },
    "Problem": {
        "type": "object",
        "description": "RFC 9457",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "field": {"type": "string", "description": "the tensor or parameter at fault"},
        },
    },
}


def openapi(app: FastAPI) -> dict[str, Any]:
    """The document of ``app`` with the blocks loaded now."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    document.setdefault("components", {}).setdefault("schemas", {}).update(COMPONENTS)
    for name, model in app.state.repository.blocks.items():
        document["paths"].setdefault(f"/v1/attention/{name}", {})["post"] = _operation(model)
    v2.add(document, app.state.repository.blocks)
    return document


def _operation(model: Model) -> dict[str, Any]:
    card = model.card
    assert card is not None
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "tags": ["attention"],
        "summary": card.title,
        "description": f"{card.description}\n\n`{card.formula}`\n\n{card.source}",
        "operationId": f"run_{model.name}",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _request(model), "example": card.example}},
        },
        "responses": {
            "200": {
                "description": "The outputs asked for",
                "content": {"application/json": {"schema": _answer(model)}},
            },
            **{status: {"description": what, "content": problem} for status, what in PROBLEMS.items()},
        },
    }


def _request(model: Model) -> dict[str, Any]:
    assert model.card is not None
    fields = {}
    for name, of in model.inputs.items():
        card = model.card.inputs[name]
        if name in model.parameters:
            fields[name] = _parameter(of, card.default) | {"description": card.description}
        else:
            said = f"{written(of.shape)}. {card.description}"
            fields[name] = {"description": said, "allOf": [{"$ref": "#/components/schemas/Tensor"}]}
    assert list(CHOICE_SCHEMAS) == list(CHOICES)
    return {
        "type": "object",
        "properties": fields | CHOICE_SCHEMAS,
        "required": [name for name, of in model.inputs.items() if of.required],
        "additionalProperties": False,
    }


def _parameter(of: Tensor, default: Any) -> dict[str, Any]:
    kind = {"b": "boolean", "i": "integer", "f": "number"}[of.dtype.kind]
    return {"type": kind} if default is None else {"type": kind, "default": default}


def _answer(model: Model) -> dict[str, Any]:
    assert model.card is not None
    return {
        "type": "object",
        "required": ["block"],
        "properties": {"block": {"type": "string"}}
        | {
            name: {"description": f"{written(of.shape)}. {model.card.outputs[name].description}"}
            for name, of in model.outputs.items()
        },
    }
