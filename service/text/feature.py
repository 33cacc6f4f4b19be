"""Texts as a feature of the service."""

from collections.abc import Sequence
from pathlib import Path

from starlette.routing import BaseRoute, Route

from service.feature import Core, Feature
from service.model.model import Model
from service.model.spec import TOKEN_INPUTS
from service.native.endpoint import block_routes
from service.text import openapi
from service.text.endpoint import TextEndpoint, TokenizeEndpoint
from service.tokens.tokenizer import load_tokenizer


class TextFeature(Feature):
    """``/v1/text/{model}`` and ``/v1/tokenize/{model}``, and the files by which models take texts."""

    def routes(self, core: Core) -> Sequence[Route]:
        texts = TextEndpoint(core.repository, core.settings, core.engine, core.source)
        return block_routes(text=texts, tokenize=TokenizeEndpoint(texts))

    def load(self, folder: Path, model: Model) -> None:
        if not model.inputs.keys().isdisjoint(TOKEN_INPUTS):
            placeholders = [*model.signature.placeholders.values()]
            model.tokenizer = load_tokenizer(folder, placeholders[0] if placeholders else None)

    def documented_routes(self, core: Core, blocks: dict[str, Model]) -> Sequence[BaseRoute]:
        return openapi.routes(blocks, core.source)
