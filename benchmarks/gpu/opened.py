"""A model of the repository as the service opens it, on the provider asked for and on no other."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from export.verification import CANONICAL
from service.graph import Graph
from service.model import Model
from service.provider import Provider
from service.repository import Repository
from service.settings import Settings


def opened(repository: Path, name: str, provider: str) -> Model:
    """Version 1 of the model.

    Raises:
        FileNotFoundError: it was not exported.
        ProviderUnavailable: CUDA does not work here.
    """
    folder = repository / name / "1"
    if not (folder / f"{CANONICAL}.onnx").exists():
        raise FileNotFoundError(f"{name} is not in the repository")
    return Model(folder, settled(repository, provider), 1)


@cache
def settled(repository: Path, provider: str) -> Provider:
    """The provider, tried once.

    Raises:
        ProviderUnavailable: CUDA does not work here.
    """
    served = Repository(Settings(model_repository=repository, provider=provider).sized())
    served.open()
    assert served.provider is not None
    return served.provider


def graph_name(graph: Graph) -> str:
    """The name of its file."""
    return graph.card.fast_path if graph.card else CANONICAL


def chosen(model: Model, shapes: Mapping[str, tuple[int, ...]], outputs: list[str], is_causal: bool) -> Graph:
    """The graph that the service would run for tensors of these shapes."""
    given = {name: np.broadcast_to(np.zeros((), model.inputs[name].dtype), shape) for name, shape in shapes.items()}
    if is_causal:
        given["is_causal"] = np.array(True)
    return model.graph_for(given, outputs, model.bind(given))
