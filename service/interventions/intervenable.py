"""A version whose activations can be changed, and the inputs of its graphs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from service.interventions.sites import Sites, has_batch
from service.model.feature_graphs import FeatureGraphs
from service.model.graph import Arrays
from service.tensors.dims import Sizes

HEAD, LAYER = PARTS = "head", "layer_"  # names of graphs, or their beginnings
START, END = "hidden_in", "hidden_out"  # inputs and outputs of these
HIDDEN, ANSWER = "hidden_states", "output"  # outputs of a model


@dataclass(frozen=True)
class Intervenable:
    """The sites and the graphs of a version."""

    sites: Sites
    graphs: FeatureGraphs

    def in_rows(self, inputs: Arrays, rows: int) -> dict[str, np.ndarray]:
        """The inputs of a run of so many rows, each that of ``inputs``, and with pictures of its own."""
        pictures = {
            name: np.tile(array, (rows, *[1] * (array.ndim - 1)))
            for name, array in inputs.items()
            if name in self._placeholders
        }
        return {name: np.asarray(array, order="C") for name, array in self.rows_of(inputs, rows).items()} | pictures

    def rows_of(self, inputs: Arrays, rows: int) -> dict[str, np.ndarray]:
        """In the shapes of ``in_rows``, as views without memory of their own; all pictures are the first one."""
        of_model, found = self.graphs.model.inputs, dict(inputs)
        for name, array in inputs.items():
            if name in self._placeholders:
                found[name] = np.broadcast_to(array[:1], (rows * len(array), *array.shape[1:]))
            elif has_batch(of_model[name].shape):
                found[name] = np.broadcast_to(array, (rows, *array.shape[1:]))
        return found

    def sizes_of(self, sizes: Sizes, rows: int) -> dict[str, int]:
        """The dimensions of the inputs in so many rows, from those of one."""
        symbols = [str(self.graphs.model.inputs[name].shape[0]) for name in self._placeholders]
        return {**sizes, **{symbol: rows * sizes[symbol] for symbol in symbols}, "batch": rows}

    @property
    def _placeholders(self) -> Collection[str]:
        return self.graphs.model.signature.placeholders

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
