"""On which terms a model is served: the settings', or what a load asked for instead; and a model opened on them."""

from dataclasses import dataclass
from pathlib import Path

from service.batch_axis import batch_axis
from service.model import Model
from service.provider import Provider
from service.version_policy import VersionPolicy


@dataclass(frozen=True)
class Terms:
    """Which versions, and how many rows where there is a batch axis."""

    policy: VersionPolicy
    max_batch_size: int


def open_model(folder: Path, provider: Provider, threads: int, terms: Terms) -> Model:
    """The version in ``folder``, run once.

    Raises:
        Exception: ONNX Runtime's own, for a file it cannot load or run.
    """
    model = Model(folder, provider, threads)
    model.warm()
    model.batch_axis = batch_axis(model)
    model.max_batch_size = terms.max_batch_size if model.batch_axis else 0
    return model
