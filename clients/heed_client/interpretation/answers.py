"""The answers of ``Client.sweep`` and ``Client.lens``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heed_client.answer import Tokens


@dataclass(frozen=True, repr=False)
class Sweep:
    """The numbers of a sweep: ``values`` has an axis for each of ``axes``, ``indices`` those of each axis.

    ``unchanged`` is the number of the run without changes, ``source`` that of the run in ``from``, ``tokens`` those of
    the text.
    """

    model: str
    axes: tuple[str, ...]
    indices: Mapping[str, Sequence[int]]
    metric: Any
    unchanged: float
    values: np.ndarray
    source: float | None = None
    tokens: Tokens | None = None

    def __repr__(self) -> str:
        shape = ", ".join(f"{len(self.indices[axis])} {axis}" for axis in self.axes)
        return f"<Sweep of {self.model}: {self.metric} over {shape or 'one cell'}, unchanged {self.unchanged:.6g}>"


@dataclass(frozen=True, repr=False)
class Lens:
    """What each layer would predict: arrays [layers, positions, k] of token ids, and of their probabilities.

    ``predicted`` has the tokens, None without a tokenizer, ``ranks`` [layers, positions] the rank of the token that
    comes next (in a masked model, of the token itself): 1 = the likeliest, 0 = there is none.
    ``output_probabilities`` [layers, positions] has the probability of the output's likeliest token in each layer; None
    from older servers.
    """

    model: str
    layers: Sequence[int]
    positions: Sequence[int]
    indices: np.ndarray
    probabilities: np.ndarray
    ranks: np.ndarray
    predicted: Sequence[Sequence[Sequence[str | None]]] | None = None
    tokens: Tokens | None = None
    output_probabilities: np.ndarray | None = None

    def __repr__(self) -> str:
        layers, positions, k = self.indices.shape
        return f"<Lens of {self.model}: {k} tokens of {layers} layers and {positions} positions>"
