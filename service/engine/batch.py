"""Tasks of equal shapes, stacked into one run along the batch axis, and its outputs split again."""

from collections.abc import Mapping, Sequence

import numpy as np

from service.engine.task import InferenceTask
from service.model.batching import BatchingRules

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


def split(joined: Mapping[str, np.ndarray], tasks: Sequence[InferenceTask], batching: BatchingRules) -> list[Arrays]:
    """The outputs of each task: its rows; contiguous, a view where that is possible."""
    if shared := tasks[0].graph.shared:
        return shared.split(joined, [task.inputs for task in tasks])
    outputs: list[Arrays] = [{} for _ in tasks]
    for name, array in joined.items():
        axis = batching.outputs[name]
        assert axis is not None
        row = 0
        for task, own in zip(tasks, outputs, strict=True):
            place = (*[slice(None)] * axis, slice(row, row + task.batch))
            row += task.batch
            own[name] = np.ascontiguousarray(array[place])
    return outputs
