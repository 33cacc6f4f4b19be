"""How requests to a model can share a run: which axis of its tensors has their rows.

The rules rely on what the model declares and its specification says; requests are joined only where one of these allows
it: every output has the batch axis, and so has every required input that is no parameter. Parameters, and tensors
without that axis, have to be equal.
"""

from collections.abc import Collection, Mapping

import numpy as np

from service.model.graph import Graph
from service.model.spec import Signature
from service.tensors.dims import symbol
from service.tensors.spec import TensorSpec


class BatchingRules:
    """The batch axis of each tensor, by name; None for a tensor without rows.

    Args:
        batched: inputs and outputs whose first axis is the batch, for a model that is no block.
        stackable: the graphs whose rows can be computed together.
    """

    def __init__(self, signature: Signature, batched: frozenset[str], stackable: frozenset[Graph]) -> None:
        spec, declared = signature.spec, signature.inputs

        def axis_of(tensor: TensorSpec) -> int | None:
            """A block names its batch axis, at any place; in a foreign model it can only be the first axis."""
            if spec:
                return next((axis for axis, dim in enumerate(tensor.shape) if symbol(dim) == "batch"), None)
            return 0 if tensor.name in batched else None

        self.inputs = {name: axis_of(tensor) for name, tensor in declared.items()}
        self.outputs = {name: axis_of(tensor) for name, tensor in signature.outputs.items()}
        required = [name for name, tensor in declared.items() if tensor.required and tensor.shape]
        has_rows = required and None not in [*(self.inputs[name] for name in required), *self.outputs.values()]
        self._stackable = stackable if has_rows else frozenset()

    def stack_key(self, graph: Graph, inputs: Mapping[str, np.ndarray], outputs: Collection[str]) -> object:
        """Equal for requests that can be stacked in one run of ``graph``; None for one that cannot."""
        if graph.shared:
            return graph, tuple(outputs), graph.shared.key(inputs)
        if graph not in self._stackable:
            return None
        tensors = [(name, self._key_of(name, array)) for name, array in sorted(inputs.items())]
        return graph, tuple(outputs), tuple(tensors)

    def _key_of(self, name: str, array: np.ndarray) -> object:
        axis = self.inputs[name]
        return _content(array) if axis is None else array.shape[:axis] + array.shape[axis + 1 :]


def _content(array: np.ndarray) -> object:
    return array.shape, tuple(array.ravel()) if array.dtype == object else array.tobytes()
