"""Texts as a feature of the service."""

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from service.feature import Core, Feature
from service.model.model import Model
from service.text import openapi
from service.text.endpoint import TextEndpoint, TokenizeEndpoint


class TextFeature(Feature):
    """``/v1/text/{model}`` and ``/v1/tokenize/{model}``."""

    def routes(self, core: Core) -> Sequence[Route]:
        texts = TextEndpoint(core.repository, core.settings, core.engine, core.source)
        endpoints: dict[str, ASGIApp] = {"text": texts, "tokenize": TokenizeEndpoint(texts)}
        return [
            Route(f"/v1/{name}/{{block}}{slash}", endpoint, methods=["POST"])
            for name, endpoint in endpoints.items()
            for slash in ("", "/")
        ]

    def documented_routes(self, core: Core, blocks: dict[str, Model]) -> Sequence[BaseRoute]:
        return openapi.routes(blocks, core.source.fields)
