"""The interface of features. A feature is a package above the core, which ``app`` alone imports.

``generation`` also builds on ``interventions``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.routing import BaseRoute, Route

from service.engine.engine import Engine
from service.inference.source import InputSource, Sources
from service.model.model import Model
from service.repository.repository import Repository
from service.settings import Settings
from service.telemetry.shared_metrics import Gauges, Key


@dataclass(frozen=True, slots=True)
class Core:
    """The parts of the service that features use."""

    repository: Repository
    settings: Settings
    engine: Engine
    source: InputSource[Any]


class Feature:
    """Routes, their documentation, metrics, files of models, and a source of inputs for the inference of both APIs."""

    source: InputSource[Any] | None = None

    def routes(self, _core: Core) -> Sequence[Route]:
        """The routes; the OpenAPI document has others in their place."""
        return ()

    def documented_routes(self, _core: Core, _blocks: dict[str, Model]) -> Sequence[BaseRoute]:
        """The routes as the OpenAPI document has them, with bodies for the loaded blocks."""
        return ()

    def load(self, _folder: Path, _model: Model) -> None:
        """Read a version's files for the feature, and set the attributes of its model that are made of them.

        Raises:
            ValueError: a file is broken.
        """
        return

    def counters(self) -> Iterable[tuple[Key, list[int]]]:
        """This process's counters, as ``Metrics`` publishes them."""
        return ()

    def gauges(self) -> Gauges:
        """This process's gauges."""
        return {}

    def sweep(self) -> None:
        """Remove what has expired; called every few seconds in a thread."""
        return

    def close(self) -> None:
        """Release what the feature holds, after the last request."""
        return


def source_of(features: Iterable[Feature]) -> InputSource[Any]:
    """The sources of all ``features`` as one."""
    return Sources([feature.source for feature in features if feature.source is not None])
