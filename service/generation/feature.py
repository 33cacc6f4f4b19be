"""Generation as a feature of the service."""

from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from starlette.routing import BaseRoute, Route

from service.feature import Core, Feature
from service.generation import openapi
from service.generation.decoder import Decoder, load_decoder
from service.generation.endpoint import GenerateEndpoint
from service.model.model import Model
from service.native.endpoint import AttentionEndpoint


class GenerationFeature(Feature):
    """``/v1/generate/{model}``. A step may use ``threads`` threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._decoders: WeakKeyDictionary[Model, Decoder] = WeakKeyDictionary()

    def routes(self, core: Core) -> Sequence[Route]:
        pipeline = AttentionEndpoint(core.repository, core.settings, core.engine, core.source)
        endpoint = GenerateEndpoint(pipeline, self._decoders)
        return [Route(f"/v1/generate/{{block}}{slash}", endpoint, methods=["POST"]) for slash in ("", "/")]

    def load(self, folder: Path, model: Model) -> None:
        decoder = load_decoder(folder, model, self._threads)
        if decoder is not None:
            self._decoders[model] = decoder

    def documented_routes(self, _core: Core, blocks: dict[str, Model]) -> Sequence[BaseRoute]:
        decoders = [self._decoders[model] for model in blocks.values() if model in self._decoders]
        return [openapi.route(decoder) for decoder in decoders if not decoder.generation.refused]
