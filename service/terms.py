"""On which terms a model is served: the settings', or what a load asked for instead; and a model opened on them."""

from dataclasses import dataclass
from pathlib import Path

from service.batch_axis import batch_axis
from service.layout import Layout
from service.model import Model
from service.provider import Provider
from service.trial import try_out
from service.version_policy import VersionPolicy


@dataclass(frozen=True)
class Terms:
    """Which versions, how many rows where there is a batch axis, and which models without a card are batched."""

    policy: VersionPolicy
    max_batch_size: int
    batch_models: str = ""  # names with commas, or all

    def batches(self, name: str) -> bool:
        return self.batch_models == "all" or name in self.batch_models.split(",")


def open_model(folder: Path, provider: Provider, threads: int, terms: Terms) -> Model:
    """The version in ``folder``, run once.

    Raises:
        Exception: ONNX Runtime's own, for a file it cannot load or run.
    """
    model = Model(folder, provider, threads)
    model.tell_placement()
    model.warm()
    model.batch_axis = batch_axis(model)
    model.max_batch_size = terms.max_batch_size if model.batch_axis else 0
    if model.card:
        model.layout = Layout(model, try_out(model))
    elif model.max_batch_size and terms.batches(model.name):
        model.layout = Layout(model, frozenset(model.graphs))
    return model
