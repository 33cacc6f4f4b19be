"""A version whose activations can be changed, and the inputs of its graphs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.interventions.sites import Sites, has_batch
from service.model.feature_graphs import FeatureGraphs
from service.model.graph import Arrays

HEAD, LAYER = PARTS = "head", "layer_"  # names of graphs, or their beginnings
START, END = "hidden_in", "hidden_out"  # inputs and outputs of these
HIDDEN, ANSWER = "hidden_states", "output"  # outputs of a model


@dataclass(frozen=True)
class Intervenable:
    """The sites and the graphs of a version."""

    sites: Sites
    graphs: FeatureGraphs

    def in_rows(self, inputs: Arrays, rows: int) -> dict[str, np.ndarray]:
        """The inputs of a run of so many rows, each that of ``inputs``."""
        return {name: np.asarray(array, order="C") for name, array in self.rows_of(inputs, rows).items()}

    def rows_of(self, inputs: Arrays, rows: int) -> dict[str, np.ndarray]:
        """As ``in_rows``, as views without memory of their own."""
        of_model = self.graphs.model.inputs
        return {
            name: np.broadcast_to(array, (rows, *array.shape[1:])) if has_batch(of_model[name].shape) else array
            for name, array in inputs.items()
        }

    def at_positions(self, inputs: Arrays, places: Sequence[int]) -> dict[str, np.ndarray]:
        """The ``inputs`` of some positions of the last hidden states."""
        positions, of_model = self.sites.sites["hidden"][2], self.graphs.model.inputs
        return {
            name: array.take(places, of_model[name].shape.index(positions))
            if positions in of_model[name].shape
            else array
            for name, array in inputs.items()
        }


def layer_name(layer: int) -> str:
    """The graph of a layer."""
    return f"{LAYER}{layer}"
