"""Models of the repository, opened as the service opens them, on the selected provider without a fallback."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from export.verification import CANONICAL
from service.model.graph import Graph
from service.model.loader import open_version
from service.model.model import Model
from service.ort.provider import Provider
from service.repository.repository import Repository
from service.settings import Settings


def open_model(repository: Path, name: str, provider: str) -> Model:
    """Version 1 of the model.

    Raises:
        FileNotFoundError: the model was not exported.
        ProviderUnavailable: CUDA does not work here.
    """
    folder = repository / name / "1"
    if not (folder / f"{CANONICAL}.onnx").exists():
        raise FileNotFoundError(f"{name} is not in the repository")
    return open_version(folder, checked_provider(repository, provider), 1)


@cache
def checked_provider(repository: Path, provider: str) -> Provider:
    """The provider, checked once.

    Raises:
        ProviderUnavailable: CUDA does not work here.
    """
    served = Repository(Settings(model_repository=repository, provider=provider).sized())
    served.open()
    assert served.provider is not None
    return served.provider


def graph_name(graph: Graph) -> str:
    """The name of the graph's file."""
    return graph.spec.fast_path if graph.spec else CANONICAL


def choose_graph(model: Model, shapes: Mapping[str, tuple[int, ...]], outputs: list[str], is_causal: bool) -> Graph:
    """The graph that the service selects for tensors of these shapes."""
    inputs = {name: np.broadcast_to(np.zeros((), model.inputs[name].dtype), shape) for name, shape in shapes.items()}
    if is_causal:
        inputs["is_causal"] = np.array(True)
    return model.graph_for(inputs, outputs, model.bind(inputs))
