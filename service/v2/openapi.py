"""Inference in the OpenAPI document: the protocol's request and response, with an example for each block."""

from typing import Annotated, Any

import numpy as np
from fastapi import Body, Header
from fastapi.routing import APIRoute
from pydantic import BaseModel

from service.base.errors import meaning
from service.http.body import JSON_LENGTH
from service.model.model import Model
from service.v2.datatypes import NAMES
from service.v2.paths import OF_MODEL, OF_VERSION, Name, Number
from service.v2.schemas import InferRequest, InferResponse

BINARY = {"schema": {"type": "string", "format": "binary"}}
LENGTH = "bytes of JSON before the binary tensors"
JsonLength = Annotated[int | None, Header(alias=JSON_LENGTH, ge=0, description=LENGTH)]
LENGTH_ANSWERED = {JSON_LENGTH: {"description": LENGTH, "schema": {"type": "integer"}}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documentation of error responses."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": meaning(status, v2=True), "content": content} for status in statuses}


def json_body(schema: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """The documentation of a JSON body that may be missing, which FastAPI cannot read from a signature."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}, "example": example}}
    return {"requestBody": {"required": False, "content": content}}


def routes(blocks: dict[str, Model]) -> list[APIRoute]:
    """Documented routes for inference; undocumented ones answer. ``blocks`` give the examples."""

    def infer(model: Name, body: Annotated[InferRequest, Body()], json_length: JsonLength = None) -> None: ...

    def infer_version(
        model: Name, version: Number, body: Annotated[InferRequest, Body()], json_length: JsonLength = None
    ) -> None: ...

    examples = {name: {"summary": name, "value": _example(model)} for name, model in blocks.items()}
    content = {"application/json": {"examples": examples}, "application/octet-stream": BINARY}
    return [
        APIRoute(
            f"/v2{path}/infer",
            endpoint,
            methods=["POST"],
            tags=["Open Inference Protocol"],
            summary=summary,
            description="Tensors in JSON, or in binary behind it, when the header Inference-Header-Content-Length says "
            "how long the JSON is (0: the whole body is the only input).",
            operation_id=endpoint.__name__,
            response_model=InferResponse,
            response_description="The requested outputs",
            responses={
                200: {"content": {"application/octet-stream": BINARY}, "headers": LENGTH_ANSWERED},
                **errors(*sorted({400, 404, 500, 501, 503, 504})),
            },
            openapi_extra={"requestBody": {"content": content}},
        )
        for path, endpoint, summary in (
            (OF_MODEL, infer, "Run a model"),
            (OF_VERSION, infer_version, "Run a version"),
        )
    ]


def _example(model: Model) -> dict[str, Any]:
    assert model.spec is not None
    arrays = {name: np.asarray(value) for name, value in model.spec.example.items()}
    request: dict[str, Any] = {
        "inputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": NAMES[model.inputs[name].dtype],
                "data": array.reshape(-1).tolist(),
            }
            for name, array in arrays.items()
            if name not in model.parameters
        ],
        "outputs": [{"name": name} for name in ("output", "weights") if name in model.outputs],
    }
    parameters = {name: array.item() for name, array in arrays.items() if name in model.parameters}
    return request | ({"parameters": parameters} if parameters else {})
