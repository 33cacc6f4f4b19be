"""Interventions as a feature of the service."""

import json
from collections.abc import Sequence
from pathlib import Path

from starlette.routing import BaseRoute, Route

from service.feature import Core, Feature
from service.interventions.request import FIELD
from service.interventions.sites import Sites
from service.interventions.source import Intervenable, InterventionSource
from service.model.feature_graphs import FeatureGraphs
from service.model.model import Model
from service.model.spec import CANONICAL
from service.ort.onnx_metadata import metadata


class InterventionsFeature(Feature):
    """The field ``interventions`` of the native API's requests. A run may use ``threads`` threads."""

    source: InterventionSource

    def __init__(self, threads: int, max_text_bytes: int) -> None:
        self._threads = threads
        self.source = InterventionSource(max_text_bytes)

    def routes(self, _: Core) -> Sequence[Route]:
        return []

    def documented_routes(self, _: Core, __: dict[str, Model]) -> Sequence[BaseRoute]:
        return []

    def load(self, folder: Path, model: Model) -> None:
        entry = json.loads(metadata(folder / CANONICAL).get("heed", "{}")).get(FIELD)
        if entry is not None:
            sites = Sites(**entry)
            graphs = FeatureGraphs(folder, model, self._threads)
            self.source.versions[model] = Intervenable(sites, graphs)
            model.interventions, model.interventions_refused = sites.sites or None, sites.refused
