"""The OpenAPI document, at /openapi.json: the fixed routes, and operations with examples for the loaded blocks."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.feature import Core, Feature
from service.http.auth import ApiKeyAuth
from service.model.model import Model
from service.native import openapi as native_openapi
from service.v2 import openapi as v2_openapi
from service.v2.log_settings import LogSettingsChange
from service.v2.schemas import ControlRequest, Error, IndexRequest

OPENAPI_PATH = "/openapi.json"
SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
NAMED = (Error, native_openapi.Problem, IndexRequest, ControlRequest, LogSettingsChange)  # that no route's types have
DEADLINE = {
    "name": "X-Request-Timeout",
    "in": "header",
    "description": "the deadline for the run to begin, in seconds",
    "schema": {"type": "number", "minimum": 0},
}
RETRY = {"Retry-After": {"description": "seconds, if a retry may succeed", "schema": {"type": "integer"}}}
RETRIED = {"503", "504", "507"}


class OpenApi:
    """Answers with the document. It takes a second to build, which a thread does, once for the same blocks."""

    def __init__(self, app: FastAPI, auth: ApiKeyAuth | None, core: Core, features: Sequence[Feature]) -> None:
        self._app, self._auth = app, auth
        self._core, self._features = core, features
        self._content = b""
        self._models: list[Model] = []  # whose operations are in it
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lock:
            blocks = self._core.repository.blocks
            models = [*blocks.values()]
            if not self._content or models != self._models:
                self._content = await asyncio.to_thread(self._build, blocks)
                self._models = models
        await Response(self._content, media_type="application/json")(scope, receive, send)

    def _build(self, blocks: dict[str, Model]) -> bytes:
        app, auth = self._app, self._auth
        apis = [
            *native_openapi.routes(blocks, self._core.source),
            *(route for feature in self._features for route in feature.documented_routes(self._core, blocks)),
            *v2_openapi.routes(blocks),
        ]
        document: dict[str, Any] = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=[*app.routes, *apis]
        )
        components = document["components"]
        for name in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(name, None)  # FastAPI's, of a 422 that no route here answers
        components["schemas"] |= {schema.__name__: schema.model_json_schema() for schema in NAMED}
        components["securitySchemes"] = SECURITY_SCHEMES if auth else {}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                responses = operation["responses"]
                if "HTTPValidationError" in str(responses.get("422")):
                    del responses["422"]
                if "504" in responses:
                    operation.setdefault("parameters", []).append(DEADLINE)
                if not path.startswith("/v2/health"):
                    for status in RETRIED & responses.keys():
                        responses[status]["headers"] = RETRY
                if auth and auth.denied({}, path, method.upper()):
                    operation["security"] = [{name: []} for name in SECURITY_SCHEMES]
                    errors = v2_openapi.errors if path.startswith("/v2") else native_openapi.problems
                    responses |= {str(status): of for status, of in errors(401, 403).items()}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
