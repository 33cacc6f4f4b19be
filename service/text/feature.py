"""Texts as a feature of the service."""

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route

from service.feature import Core, Feature
from service.model.model import Model
from service.text import endpoint, openapi


class TextFeature(Feature):
    """``/v1/text/{model}`` and ``/v1/tokenize/{model}``."""

    def routes(self, core: Core) -> Sequence[Route]:
        return endpoint.routes(core.repository, core.settings, core.engine, core.source)

    def documented_routes(self, core: Core, blocks: dict[str, Model]) -> Sequence[BaseRoute]:
        return openapi.routes(blocks, core.source.fields)
