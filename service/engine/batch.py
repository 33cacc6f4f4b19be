"""Tasks joined into one run along the batch axis, and its outputs split again.

Tasks of equal shapes are stacked, on the graph that each would have run on. Tasks of different lengths are padded, on a
graph with a mask, which forbids every padded key; padded queries are cut off the outputs. Padding repeats the last real
number along an axis, a value that the block is known to accept.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from service.engine.task import InferenceTask
from service.model.batching import BatchingRules
from service.model.model import Model
from service.tensors.bfloat16 import astype
from service.tensors.dims import Sizes, dim_size
from service.tensors.spec import TensorSpec

Arrays = dict[str, np.ndarray]


def stack(tasks: Sequence[InferenceTask], batching: BatchingRules) -> Arrays:
    """The inputs of tasks with one stack key, row after row, or of their shared pass."""
    if shared := tasks[0].graph.shared:
        return dict(shared.join([task.inputs for task in tasks]))
    joined = {}
    for name, array in tasks[0].inputs.items():
        axis = batching.inputs[name]
        if axis is not None:
            array = np.concatenate([_broadcast(task.inputs[name], axis, task.batch) for task in tasks], axis)
        joined[name] = array
    return joined


def _broadcast(array: np.ndarray, axis: int, rows: int) -> np.ndarray:
    """A tensor with one row for all rows of a task, repeated for each."""
    if array.shape[axis] == rows:
        return array
    return np.broadcast_to(array, (*array.shape[:axis], rows, *array.shape[axis + 1 :]))


def pad(tasks: Sequence[InferenceTask], batching: BatchingRules, model: Model) -> Arrays:
    """The inputs of tasks with one pad key, row after row, padded to the longest; the mask forbids padded keys."""
    longest = {name: max(task.sizes[name] for task in tasks) for name in batching.lengths}
    sizes = tasks[0].sizes | longest | {"batch": sum(task.batch for task in tasks)}
    assert batching.mask is not None
    joined = {batching.mask: _mask(tasks, model.inputs[batching.mask], sizes)}
    for name, array in tasks[0].inputs.items():
        axis = batching.inputs[name]
        if name != batching.mask:
            joined[name] = array if axis is None else _padded(tasks, axis, model.inputs[name], sizes)
    return joined


def _padded(tasks: Sequence[InferenceTask], axis: int, tensor: TensorSpec, sizes: Sizes) -> np.ndarray:
    """The input of all tasks; one that broadcasts along an axis is repeated along it."""
    joined = np.empty([dim_size(dim, sizes) for dim in tensor.shape], tensor.dtype)
    row = 0
    for task in tasks:
        shape = [dim_size(dim, task.sizes) for dim in tensor.shape]
        place: list[slice] = [slice(size) for size in shape]
        place[axis] = slice(row, row + task.batch)
        row += task.batch
        joined[tuple(place)] = task.inputs[tensor.name]
        for along, size in enumerate(shape):  # one axis after the other, so that corners are filled, too
            if along != axis and size < joined.shape[along]:
                padding, last = list(place), list(place)
                padding[along], last[along] = slice(size, None), slice(size - 1, size)
                joined[tuple(padding)] = joined[tuple(last)]
                place[along] = slice(None)
    return joined


def _mask(tasks: Sequence[InferenceTask], tensor: TensorSpec, sizes: Sizes) -> np.ndarray:
    """Zero, or the task's own mask, for a real key; -inf for a padded one. Where all broadcast, an axis has size 1."""
    own = [task.inputs[tensor.name] for task in tasks if tensor.name in task.inputs]
    broadcast = [all(array.shape[axis] == 1 for array in own) for axis in range(len(tensor.shape))]
    shape = [1 if broadcast[axis] else dim_size(dim, sizes) for axis, dim in enumerate(tensor.shape)]
    shape[0], shape[-1] = sizes["batch"], dim_size(tensor.shape[-1], sizes)
    mask, forbidden = np.zeros(shape, tensor.dtype), astype(np.array(-np.inf), tensor.dtype)
    row = 0
    for task in tasks:
        rows = slice(row, row + task.batch)
        row += task.batch
        m, n = (dim_size(dim, task.sizes) for dim in tensor.shape[-2:])
        if tensor.name in task.inputs:
            mask[rows, :, :m, :n] = task.inputs[tensor.name]
        mask[rows, :, :, n:] = forbidden
    return mask


def split(
    joined: Mapping[str, np.ndarray], tasks: Sequence[InferenceTask], batching: BatchingRules, model: Model
) -> list[Arrays]:
    """The outputs of each task: its rows, cut to its own sizes; contiguous, a view where that is possible."""
    if shared := tasks[0].graph.shared:
        return shared.split(joined, [task.inputs for task in tasks])
    outputs: list[Arrays] = [{} for _ in tasks]
    for name, array in joined.items():
        axis, dims = batching.outputs[name], model.outputs[name].shape
        assert axis is not None
        row = 0
        for task, own in zip(tasks, outputs, strict=True):
            place = [slice(dim_size(dim, task.sizes) if model.spec else None) for dim in dims]
            place[axis] = slice(row, row + task.batch)
            row += task.batch
            own[name] = np.ascontiguousarray(array[tuple(place)])
    return outputs
