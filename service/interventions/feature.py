"""Interventions as a feature of the service."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute, Route

from service.feature import Core, Feature
from service.inference.source import InputSource
from service.interventions import openapi
from service.interventions.intervenable import PARTS, Intervenable
from service.interventions.lens.endpoint import LensEndpoint
from service.interventions.request import FIELD
from service.interventions.sites import Sites
from service.interventions.source import InterventionSource
from service.interventions.sweep.endpoint import SweepEndpoint
from service.model.feature_graphs import FeatureGraphs
from service.model.model import Model
from service.model.spec import CANONICAL
from service.native.endpoint import AttentionEndpoint, block_routes
from service.ort.onnx_metadata import metadata
from service.settings import Settings


class InterventionsFeature(Feature):
    """The field ``interventions`` of the native API's requests; ``files`` makes inputs of the files of a run."""

    source: InterventionSource

    def __init__(self, settings: Settings, files: InputSource[Any]) -> None:
        self._threads = settings.intra_op_threads
        self.source = InterventionSource(files, settings)

    def routes(self, core: Core) -> Sequence[Route]:
        pipeline = AttentionEndpoint(core.repository, core.settings, core.engine, core.source)
        return block_routes(sweep=SweepEndpoint(pipeline, self.source), lens=LensEndpoint(pipeline, self.source))

    def documented_routes(self, _: Core, blocks: dict[str, Model]) -> Sequence[BaseRoute]:
        versions = [(model, self.source.versions.get(model)) for model in blocks.values()]
        return [
            route
            for model, version in versions
            if version is not None and not version.sites.refused
            for route in openapi.routes(model, version, self.source.files.fields_for(model))
        ]

    def load(self, folder: Path, model: Model) -> None:
        entry = json.loads(metadata(folder / CANONICAL).get("heed", "{}")).get(FIELD)
        if entry is not None:
            sites = Sites(**entry)
            graphs = FeatureGraphs(folder, model, self._threads, PARTS)
            self.source.versions[model] = Intervenable(sites, graphs)
            model.interventions, model.interventions_refused = sites.sites or None, sites.refused
