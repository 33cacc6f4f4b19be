"""Generation as a feature of the service."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from starlette.routing import BaseRoute, Route

from service.feature import Core, Feature
from service.generation import openapi
from service.generation.counters import GenerationCounters
from service.generation.decoder import Decoder, load_decoder
from service.generation.endpoint import GenerateEndpoint
from service.generation.scheduler import Scheduler
from service.generation.triton import GENERATE, STREAM, TritonEndpoint
from service.interventions.lens.steps import has_step_lens
from service.interventions.source import InterventionSource
from service.model.model import Model
from service.native.endpoint import AttentionEndpoint, block_routes
from service.native.schemas import GenerateDescription
from service.telemetry.shared_metrics import Key
from service.v2.paths import OF_MODEL, OF_VERSION


class GenerationFeature(Feature):
    """``/v1/generate/{model}``, and Triton's extension of the protocol. A step may use ``threads`` threads.

    ``source`` reads interventions; its feature loads a version before this one.
    """

    def __init__(self, threads: int, source: InterventionSource) -> None:
        self._threads, self._source = threads, source
        self._counters = GenerationCounters()
        self._decoders: WeakKeyDictionary[Model, Decoder] = WeakKeyDictionary()

    def routes(self, core: Core) -> Sequence[Route]:
        pipeline = AttentionEndpoint(core.repository, core.settings, core.engine, core.source)
        is_sharing = core.settings.batching != "off"
        scheduler = Scheduler(core.engine, self._counters, is_sharing, core.settings.max_memory_bytes)
        native, triton = (
            kind(pipeline, self._decoders, scheduler, self._source) for kind in (GenerateEndpoint, TritonEndpoint)
        )
        routes = block_routes(generate=native)
        for model in (OF_MODEL, OF_VERSION):
            routes += [Route(f"/v2{model}/{name}", triton, methods=["POST"]) for name in (GENERATE, STREAM)]
        return routes

    def load(self, folder: Path, model: Model) -> None:
        decoder = load_decoder(folder, model, self._threads)
        if decoder is not None:
            self._decoders[model] = decoder
            generation = decoder.generation
            model.generate_refused = generation.refused
            if not generation.refused:
                model.generate = GenerateDescription(
                    two_stacks=generation.two_stacks,
                    shares_runs=generation.shares_runs,
                    quantized=generation.quantized,
                    interventions=[*self._sites(model)],
                )

    def _sites(self, model: Model) -> Sequence[str]:
        """The activations that a request to generate may change."""
        version = self._source.versions.get(model)
        return [*version.sites.of_steps.sites] if version else []

    def documented_routes(self, core: Core, blocks: dict[str, Model]) -> Sequence[BaseRoute]:
        decoders = [(model, self._decoders[model]) for model in blocks.values() if model in self._decoders]
        return [
            *(
                openapi.route(
                    decoder,
                    bool(self._sites(model)),
                    has_step_lens(model, self._source.versions.get(model)),
                    core.source.of_tensors.fields_for(model),
                )
                for model, decoder in decoders
                if not decoder.generation.refused
            ),
            *openapi.triton_routes(),
        ]

    def counters(self) -> Iterable[tuple[Key, list[int]]]:
        return self._counters.counted()
