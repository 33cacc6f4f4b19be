"""How requests to a model can share a run: where its tensors have their rows, and which lengths may be padded.

Only what the model declares and its card says is relied on, and what neither says is not joined:

- Every output has the batch axis, and so has every required input that is no parameter. Parameters, and tensors without
  that axis, have to be equal.
- Lengths are the last two dimensions of the input that is a mask (``m`` and ``n`` of ``past + n``), without those that
  an input which needs another brings along (``past``): a padded key has to be the last one.
- With an input that itself says a length (``nonpad_kv_seqlen``), the number of queries decides which keys they see, so
  nothing is padded.
"""

import numpy as np

from service.graph import Graph
from service.model import Model, Tensor
from service.shape import symbol
from service.work import Work


class Layout:
    """Axes by tensor; None where a tensor has no rows. ``stacks`` are the graphs on which rows may run together."""

    def __init__(self, model: Model, stacks: frozenset[Graph]) -> None:
        self.stacks = stacks
        rows = "batch" if model.card else model.batch_axis
        self.inputs = {name: _axis(of, rows) for name, of in model.inputs.items()}
        self.outputs = {name: _axis(of, rows) for name, of in model.outputs.items()}
        required = [name for name, of in model.inputs.items() if of.required and of.shape]
        if not required or None in [*(self.inputs[name] for name in required), *self.outputs.values()]:
            self.stacks = frozenset()
        card = model.card
        self.mask = next((name for name, of in card.inputs.items() if of.mask), None) if card else None
        self.lengths: frozenset[str] = frozenset()
        self._says_length: frozenset[str] = frozenset()
        if card and self.mask and self.inputs[self.mask] == 0:
            brought = {symbol(dim) for name, of in card.inputs.items() if of.needs for dim in model.inputs[name].shape}
            terms = {term for dim in model.inputs[self.mask].shape[-2:] for term in symbol(dim).split(" + ")}
            self.lengths = frozenset(terms - brought)
            self._says_length = frozenset(name for name, of in card.inputs.items() if isinstance(of.maximum, str))

    def alike(self, work: Work) -> object:
        """Equal for works that can be stacked; None for one that cannot."""
        if work.graph not in self.stacks:
            return None
        tensors = [(name, self._told_apart_by(name, array)) for name, array in sorted(work.inputs.items())]
        return work.graph, tuple(work.outputs), tuple(tensors)

    def akin(self, work: Work) -> object:
        """Equal for works that can be padded to one another; None for one that cannot."""
        if not self.lengths or work.graph not in self.stacks or not self._says_length.isdisjoint(work.inputs):
            return None
        sizes = [(name, size) for name, size in work.sizes.items() if name != "batch" and name not in self.lengths]
        equal = [(name, _content(array)) for name, array in sorted(work.inputs.items()) if self.inputs[name] is None]
        return work.model, tuple(work.outputs), frozenset(work.inputs), tuple(sorted(sizes)), tuple(equal)

    def _told_apart_by(self, name: str, array: np.ndarray) -> object:
        axis = self.inputs[name]
        return _content(array) if axis is None else array.shape[:axis] + array.shape[axis + 1 :]

    def masked_graph(self, work: Work) -> Graph:
        """The graph that runs ``work`` with a mask."""
        assert self.mask is not None
        given = {self.mask: np.zeros(1), **work.inputs}
        return work.model.graph_for(given, work.outputs, work.sizes)


def _axis(of: Tensor, rows: str | None) -> int | None:
    return next((axis for axis, dim in enumerate(of.shape) if symbol(dim) == rows), None)


def _content(array: np.ndarray) -> object:
    return array.shape, tuple(array.ravel()) if array.dtype == object else array.tobytes()
